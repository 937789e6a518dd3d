//! One mistake gives one error, and two mistakes give two in one compile: every pair of kinds, generated.

use crate::batch;

/// A handler or an operation as its user writes it, before a mistake is made.
#[derive(Clone)]
struct Program {
    items: Vec<&'static str>,
    options: Vec<(&'static str, String)>,
    head: &'static str,
    name: &'static str,
    tenant: &'static str,
    before: Vec<&'static str>,
    unit: &'static str,
    last: &'static str,
    result: &'static str,
    statements: Vec<&'static str>,
    tail: &'static str,
}

impl Program {
    fn new() -> Self {
        Self {
            items: Vec::new(),
            options: vec![("scope", "scope = tenant.id".into()), ("ttl", "ttl = \"24h\"".into())],
            head: "pub async fn",
            name: "create_order",
            tenant: "tenant: Tenant",
            before: Vec::new(),
            unit: "tx: &mut Tx",
            last: "Json(new): Json<NewOrder>",
            result: "Result<StatusCode, ApiError>",
            statements: Vec::new(),
            tail: "Ok(save(tx).await)",
        }
    }

    fn option(&mut self, name: &'static str, written: &str) {
        self.options.retain(|(other, _)| *other != name);
        if !written.is_empty() {
            self.options.push((name, written.to_owned()));
        }
    }

    /// As an operation of several steps.
    fn steps(&mut self) {
        self.unit = "op: &mut Operation";
        self.tail = "Ok(check_out(op).await)";
    }

    fn text(&self) -> String {
        let Self { items, head, name, tenant, before, unit, last, result, statements, tail, .. } = self;
        let options: Vec<&str> = self.options.iter().map(|(_, written)| written.as_str()).collect();
        let before: String = before.iter().map(|argument| format!("{argument}, ")).collect();
        let arrow = if result.is_empty() { String::new() } else { format!("-> {result} ") };
        format!(
            "{}\n#[idempotent({})]\n{head} {name}({tenant}, {before}{unit}, {last}) {arrow}{{\n{}\n{tail}\n}}\nfn route() {{ routed(post({name})); }}",
            items.join("\n"),
            options.join(", "),
            statements.join("\n")
        )
    }
}

/// What the compiler does not look at when something else is wrong with the same body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// By the attribute, in the tokens.
    Tokens,
    /// By the types in the user's body.
    TypesOfBody,
    /// By the types of the generated function.
    TypesOfHandler,
    /// By the types of the signature.
    TypesOfSignature,
    /// By the borrow checker in the user's body, which needs all types of that body.
    BorrowsOfBody,
    /// By the borrow checker in the generated function.
    BorrowsOfHandler,
}

struct Mistake {
    name: &'static str,
    /// Mistakes in the same place cannot be made together.
    places: &'static [&'static str],
    found: Found,
    make: fn(&mut Program),
    /// A part of the error.
    error: &'static str,
}

macro_rules! mistakes {
    ($($name:ident in $places:expr, by $found:ident, $make:expr => $error:expr;)*) => {
        &[$(Mistake { name: stringify!($name), places: &$places, found: Found::$found, make: $make, error: $error }),*]
    };
}

const MISTAKES: &[Mistake] = mistakes! {
    not_async in ["head"], by Tokens, |p| p.head = "pub fn" => "must be async";
    is_const in ["head"], by Tokens, |p| p.head = "pub const async fn" => "`const`";
    is_unsafe in ["head"], by Tokens, |p| p.head = "pub async unsafe fn" => "`unsafe`";
    ttl_unit in ["ttl"], by Tokens, |p| p.option("ttl", "ttl = \"24\"") => "must have a unit";
    ttl_missing in ["ttl"], by Tokens, |p| p.option("ttl", "") => "option `ttl` must say";
    ttl_literal in ["ttl"], by Tokens, |p| p.option("ttl", "ttl = 24h") => "use `ttl = \"24h\"`";
    scope_missing in ["scope"], by Tokens, |p| p.option("scope", "") => "option `scope` must say";
    scope_name in ["scope"], by Tokens, |p| p.option("scope", "scope = tennant.id") => "use `tenant`";
    scope_word in ["scope"], by Tokens, |p| p.option("scope", "scope = globl") => "use `scope = global`";
    scope_constant in ["scope"], by Tokens, |p| p.option("scope", "scope = \"orders\"") => "depend on who sends";
    scope_fresh in ["scope"], by Tokens, |p| p.option("scope", "scope = uuid::Uuid::new_v4()") => "another value for each";
    scope_default in ["scope"], by Tokens, |p| p.option("scope", "scope = tenant.parent.unwrap_or_default()") => "without a value";
    scope_question in ["scope"], by Tokens, |p| p.option("scope", "scope = tenant.parent?") => "`?` must not stand";
    scope_option in ["scope"], by TypesOfHandler, |p| p.option("scope", "scope = tenant.parent") => "cannot be a scope";
    scope_moves in ["scope"], by BorrowsOfHandler, |p| p.option("scope", "scope = String::from_utf8(tenant.name.into_bytes()).unwrap()") => "cannot move out";
    key_constant in ["key"], by Tokens, |p| p.option("key", "key = \"order\"") => "depend on the request";
    key_quoted in ["key"], by Tokens, |p| p.option("key", "key = \"optional\"") => "without quotes";
    key_typo in ["key"], by Tokens, |p| p.option("key", "key = optinal") => "use `key = optional`";
    key_in_scope in ["key", "scope"], by Tokens, |p| p.option("key", "key = tenant.id") => "must not be a part of `scope`";
    key_float in ["key"], by TypesOfHandler, |p| p.option("key", "key = tenant.share") => "cannot be an idempotency key";
    fingerprint_constant in ["fingerprint"], by Tokens, |p| p.option("fingerprint", "fingerprint = ()") => "takes every request for the same";
    fingerprint_type in ["fingerprint"], by TypesOfHandler, |p| p.option("fingerprint", "fingerprint = tenant") => "must implement `Serialize` to be a fingerprint";
    in_flight_word in ["in_flight"], by Tokens, |p| p.option("in_flight", "in_flight = reject") => "use `in_flight = \"reject\"`";
    in_flight_longer in ["in_flight", "ttl"], by Tokens, |p| p.option("in_flight", "in_flight = \"wait 2d\"") => "longer than `ttl`";
    failures_word in ["failures"], by Tokens, |p| p.option("failures", "failures = release") => "use `failures = \"release\"`";
    lease_short in ["lease"], by Tokens, |p| p.option("lease", "lease = \"1ms\"") => "at least a second";
    lease_longer in ["lease", "ttl"], by Tokens, |p| p.option("lease", "lease = \"25h\"") => "longer than `ttl`";
    isolation_typo in ["isolation"], by Tokens, |p| p.option("isolation", "isolation = \"serialisable\"") => "use `\"serializable\"`";
    unknown_option in ["option"], by Tokens, |p| p.option("option", "retries = 3") => "unknown option `retries`";
    option_twice in ["twice", "ttl"], by Tokens, |p| p.option("twice", "ttl = \"1h\"") => "must be given once";
    allow_without_pool in ["allow", "pool"], by Tokens, |p| p.option("allow", "allow(pool)") => "no pool here to allow";
    transaction_by_value in ["unit"], by Tokens, |p| p.unit = "tx: Tx" => "must be taken as `&mut Tx`";
    transaction_connection in ["unit"], by Tokens, |p| p.unit = "tx: &mut sqlx::PgConnection" => "must be taken as `&mut Tx`";
    transaction_unused in ["unit", "tx"], by Tokens, |p| { p.unit = "_tx: &mut Tx"; p.tail = "Ok(StatusCode::CREATED)" } => "nothing here is written";
    primitive in ["before"], by Tokens, |p| p.before.push("id: i64") => "must be an extractor";
    web_socket in ["before"], by Tokens, |p| { p.items.push("pub struct WebSocketUpgrade;"); p.before.push("socket: WebSocketUpgrade") } => "WebSocket";
    pool_argument in ["pool"], by Tokens, |p| p.before.push("Extension(pool): Extension<sqlx::PgPool>") => "writes outside";
    pool_alias in ["pool"], by TypesOfSignature, |p| { p.items.push("type Db = sqlx::PgPool;"); p.before.push("Extension(x): Extension<Db>") } => "leads to a pool";
    pool_in_body in ["pool"], by Tokens, |p| {
        p.items.push("#[derive(Clone)] pub struct Shop { pool: sqlx::PgPool }");
        p.before.push("Extension(shop): Extension<Shop>");
        p.statements.push("let _ = sqlx::query(\"SELECT 1\").execute(&shop.pool).await;");
    } => "`shop.pool` writes outside";
    body_first in ["before", "last"], by TypesOfSignature, |p| p.before.push("Json(other): Json<NewOrder>") => "must be the last extractor";
    payload in ["last"], by TypesOfSignature, |p| { p.items.push("pub struct Filter;"); p.last = "Json(new): Json<Filter>" } => "Filter` must implement `Deserialize`";
    path_payload in ["path"], by TypesOfSignature, |p| { p.items.push("pub struct Place;"); p.before.push("Path(at): Path<Place>") } => "to be extracted";
    state_without in ["state"], by TypesOfSignature, |p| { p.items.push("#[derive(Clone)] pub struct Empty;"); p.option("state", "state = Empty") } => "must hold an `Idempotency`";
    state_part in ["state", "allow"], by TypesOfSignature, |p| { p.before.push("State(count): State<u64>"); p.option("state", "state = AppState") } => "must be a part of the state";
    result_body in ["result"], by Tokens, |p| { p.result = "axum::body::Body"; p.tail = "{ save(tx).await; axum::body::Body::empty() }" } => "no known end";
    result_type in ["result", "tx"], by TypesOfHandler, |p| { p.result = "Order"; p.tail = "{ save(tx).await; Order { id: 1 } }" } => "IntoResponse";
    sql in ["sql"], by Tokens, |p| p.statements.push("let _ = sqlx::query(\"COMMIT\").execute(&mut *tx).await;") => "`COMMIT` must not stand";
    commit in ["commit", "tx"], by TypesOfBody, |p| p.statements.push("let _ = tx.commit().await;") => "must not be committed";
    spawned in ["spawned", "tx", "sql", "result"], by BorrowsOfBody, |p| {
        p.items.push("fn spawn<F: Future + Send + 'static>(_: F) {}");
        p.statements.push("spawn(async move { let _ = save(tx).await; });");
        p.tail = "Ok(StatusCode::CREATED)";
    } => "borrowed data escapes";
    step_result in ["unit", "tx", "sql", "result"], by TypesOfBody, |p| {
        p.steps();
        p.items.push("pub struct Charge;");
        p.statements.push("let _: Result<Charge, ApiError> = op.step(\"charge\", async |_key| Ok::<Charge, ApiError>(Charge)).await;");
    } => "to be recorded";
    step_error in ["unit", "tx", "sql", "result"], by TypesOfBody, |p| {
        p.steps();
        p.items.push("pub struct PspError;");
        p.statements.push("let _: Result<i64, PspError> = op.step(\"charge\", async |_key| Ok::<i64, PspError>(1)).await;");
    } => "`From<idem_runtime::Error>`";
    step_twice in ["unit", "tx", "sql", "result"], by Tokens, |p| {
        p.steps();
        p.statements.push("let a: i64 = op.step(\"charge\", async |_key| Ok::<i64, ApiError>(1)).await?;");
        p.statements.push("let b: i64 = op.step(\"charge\", async |_key| Ok::<i64, ApiError>(1)).await?;");
    } => "a name of its own";
    step_in_loop in ["unit", "tx", "sql", "result"], by Tokens, |p| {
        p.steps();
        p.statements.push("for line in 0..2 { let _: i64 = op.step(\"charge\", async |_key| Ok::<i64, ApiError>(line)).await?; }");
    } => "a step in a loop";
};

#[test]
fn one_mistake_gives_one_error() {
    let programs: Vec<_> = MISTAKES.iter().map(|mistake| (mistake.name.to_owned(), program(&[mistake]))).collect();
    let mut faults = Vec::new();
    for (mistake, outcome) in MISTAKES.iter().zip(batch::compile("single", &programs)) {
        if !matches!(outcome.errors.as_slice(), [error] if is_meant(mistake, error)) {
            faults.push(format!("{}: {:#?}\n{}", outcome.name, outcome.errors, outcome.text));
        }
    }
    println!("{} programs, each with one mistake", programs.len());
    batch::report(&faults);
}

#[test]
fn two_mistakes_give_two_errors() {
    let mut pairs = Vec::new();
    for (position, first) in MISTAKES.iter().enumerate() {
        for second in &MISTAKES[position + 1..] {
            if !first.places.iter().any(|place| second.places.contains(place))
                && !hides(first, second)
                && !hides(second, first)
            {
                pairs.push((first, second));
            }
        }
    }
    let programs: Vec<_> = pairs
        .iter()
        .map(|(first, second)| (format!("{} and {}", first.name, second.name), program(&[first, second])))
        .collect();
    let mut faults = Vec::new();
    for ((first, second), outcome) in pairs.iter().zip(batch::compile("pairs", &programs)) {
        let (ours, theirs) = (
            outcome.errors.iter().filter(|error| is_meant(first, error)).count(),
            outcome.errors.iter().filter(|error| is_meant(second, error)).count(),
        );
        if outcome.errors.len() != 2 || ours == 0 || theirs == 0 {
            faults.push(format!("{}: {:#?}\n{}", outcome.name, outcome.errors, outcome.text));
        }
    }
    println!("{} programs, each with two mistakes of {} kinds", programs.len(), MISTAKES.len());
    assert!(programs.len() > 900, "most kinds can be made together");
    batch::report(&faults);
}

/// The compiler checks borrows only in a function whose types are right, its signature's among them; a user's own function
/// would show them no sooner.
fn hides(first: &Mistake, second: &Mistake) -> bool {
    matches!(
        (first.found, second.found),
        (Found::TypesOfBody, Found::BorrowsOfBody)
            | (Found::TypesOfHandler | Found::TypesOfSignature, Found::BorrowsOfHandler)
    )
}

fn is_meant(mistake: &Mistake, error: &str) -> bool {
    error.contains(mistake.error)
}

fn program(mistakes: &[&Mistake]) -> String {
    let mut program = Program::new();
    for mistake in mistakes {
        (mistake.make)(&mut program);
    }
    program.text()
}
