//! What compiles elsewhere and loses writes, doubles them or mixes strangers up: for each kind the product of its ways to
//! be written, generated. Beside each stand the twins that must compile without a word.

use crate::batch;

/// A handler `create_order`, routed. `Shop` holds pools and other things.
fn handler(options: &str, arguments: &str, body: &str) -> String {
    let comma = if arguments.is_empty() { "" } else { ", " };
    format!(
        r#"{ITEMS}
#[idempotent(scope = tenant.id, ttl = "24h"{options})]
pub async fn create_order(tenant: Tenant{comma}{arguments}, tx: &mut Tx, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {{
    {body}
    Ok(save(tx).await)
}}
fn route() {{ let _: MethodRouter<Shop> = post(create_order); }}
"#
    )
}

const ITEMS: &str = r#"
use std::sync::{Arc, LazyLock, OnceLock};
use sqlx::{Acquire, Connection, Executor, PgPool, Postgres, QueryBuilder, Row};
#[derive(Clone, FromRef)]
pub struct Shop { pub idempotency: Idempotency, pub pool: PgPool, pub db: Arc<PgPool>, pub inner: Inner, pub sound: Sound, pub repo: Repo }
#[derive(Clone)]
pub struct Inner { pub pg_pool: PgPool }
#[derive(Clone)]
pub struct Repo(Arc<PgPool>);
impl Repo { async fn find(&self, tx: &mut Tx) -> Result<(), sqlx::Error> { tx.execute("SELECT 1").await.map(drop) } }
#[derive(Clone, Default)]
pub struct Sound { pub db: i64, pub level: i64 }
impl Sound {
    fn execute(&self, _: &i64) -> i64 { 1 }
    fn begin(&self) -> i64 { 1 }
    fn louder(&self, by: i64) -> i64 { self.db + by }
}
static POOL: OnceLock<PgPool> = OnceLock::new();
static DB: LazyLock<PgPool> = LazyLock::new(|| todo!());
fn pool() -> &'static PgPool { todo!() }
async fn insert(pool: &PgPool) -> Result<(), sqlx::Error> { pool.execute("SELECT 1").await.map(drop) }
async fn insert_on(connection: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> { connection.execute("SELECT 1").await.map(drop) }
"#;

/// Exactly one error with `part` in each program.
fn refused(batch: &str, part: &str, programs: &[(String, String)]) {
    let outcomes = batch::compile(batch, programs);
    let is_refused = |errors: &[String]| matches!(errors, [error] if error.contains(part));
    let faults = outcomes.iter().filter(|outcome| !is_refused(&outcome.errors));
    let faults: Vec<String> = faults.map(|outcome| format!("{}: {:#?}", outcome.name, outcome.errors)).collect();
    println!("{} programs that must be refused", programs.len());
    batch::report(&faults);
}

/// Neither an error nor a warning.
pub(crate) fn accepted(batch: &str, programs: &[(String, String)]) {
    let outcomes = batch::compile(batch, programs);
    let faults = outcomes.iter().filter(|outcome| !outcome.errors.is_empty() || !outcome.warnings.is_empty());
    let faults: Vec<String> =
        faults.map(|outcome| format!("{}: {:#?} {:#?}", outcome.name, outcome.errors, outcome.warnings)).collect();
    println!("{} programs that must compile", programs.len());
    batch::report(&faults);
}

/// Where a pool hides: the arguments, what comes first in the body, and how the pool is reached.
const HIDING_PLACES: &[(&str, &str, &str)] = &[
    ("State(state): State<Shop>", "", "state.pool"),
    ("State(state): State<Shop>", "", "state.inner.pg_pool"),
    ("state: State<Shop>", "", "state.pool"),
    ("Extension(shop): Extension<Shop>", "", "shop.pool"),
    ("Extension(shop): Extension<Arc<Shop>>", "", "shop.pool"),
    ("State(state): State<Shop>", "let pool = state.pool.clone();", "pool"),
    ("State(state): State<Shop>", "let mine = state.pool.clone();", "mine"),
    ("State(state): State<Shop>", "let Shop { pool, .. } = state;", "pool"),
    ("", "", "DB"),
    ("", "", "POOL.get().unwrap()"),
    ("", "", "pool()"),
];

/// How it is written to.
const WRITES: &[&str] = &[
    "sqlx::query(\"INSERT INTO a VALUES (1)\").execute(REF).await?;",
    "let _: i64 = sqlx::query_scalar(\"INSERT INTO a VALUES ($1)\").bind(1).fetch_one(REF).await?;",
    "let insert = sqlx::query(\"INSERT INTO a VALUES (1)\"); insert.execute(REF).await?;",
    "QueryBuilder::<Postgres>::new(\"INSERT INTO a\").build().execute(REF).await?;",
    "let mut other = PLACE.begin().await?; other.commit().await?;",
    "let mut connection = PLACE.acquire().await?; insert_on(&mut connection).await?;",
    "insert(REF).await?;",
    "Executor::execute(REF, \"INSERT INTO a VALUES (1)\").await?;",
];

/// What is around it.
const WRAPPERS: &[&str] = &[
    "STATEMENT",
    "if new.total > 0 { STATEMENT }",
    "for _ in 0..1 { STATEMENT }",
    "let write = async { STATEMENT Ok::<_, sqlx::Error>(()) }; write.await?;",
];

#[test]
fn a_pool_is_found_wherever_it_hides() {
    let mut programs = Vec::new();
    for (arguments, before, place) in HIDING_PLACES {
        for write in WRITES {
            for wrapper in WRAPPERS {
                let is_reference = ["DB", "POOL.get().unwrap()", "pool()"].contains(place);
                let reference = match *place {
                    "DB" => "&*DB".to_owned(),
                    _ if is_reference => (*place).to_owned(),
                    _ => format!("&{place}"),
                };
                let statement = write.replace("REF", &reference).replace("PLACE", place);
                let body = format!("{before} {}", wrapper.replace("STATEMENT", &statement));
                programs.push((format!("{arguments} {body}"), handler("", arguments, &body)));
            }
        }
    }
    refused("pools", "writes outside of the transaction", &programs);
    let allowed: Vec<_> = programs
        .iter()
        .map(|(name, text)| (name.clone(), text.replacen("ttl = \"24h\"", "ttl = \"24h\", allow(pool)", 1)))
        .collect();
    accepted("pools-allowed", &allowed);
}

#[test]
fn a_pool_among_the_arguments_is_found_by_its_type() {
    let items = "pub type Db = PgPool;\nuse axum::extract::State as St;\n#[derive(Clone)] pub struct Wrapped(PgPool);\n\
         impl std::ops::Deref for Wrapped { type Target = PgPool; fn deref(&self) -> &PgPool { &self.0 } }\n\
         #[derive(Clone, FromRef)] pub struct Owner { pub idempotency: Idempotency, pub first: PgPool, pub second: Arc<PgPool>, pub third: Wrapped, pub count: u64 }";
    let mut programs = Vec::new();
    for (wrapper, pattern) in [("State", "State(x)"), ("St", "St(x)"), ("Extension", "Extension(x)"), ("St", "x")] {
        for ty in ["Db", "PgPool", "Arc<PgPool>", "Arc<Db>", "Wrapped", "sqlx::Pool<Postgres>"] {
            programs.push(format!("{pattern}: {wrapper}<{ty}>"));
        }
    }
    for pattern in
        ["Owner { first, .. }", "Owner { first: x, .. }", "Owner { second: x, count, .. }", "Owner { third, .. }"]
    {
        programs.push(format!("State({pattern}): State<Owner>"));
        programs.push(format!("Extension({pattern}): Extension<Owner>"));
    }
    let programs: Vec<_> = programs
        .into_iter()
        .map(|arguments| {
            let text = handler("", &arguments, "").replace("MethodRouter<Shop>", "MethodRouter<Owner>");
            (arguments, format!("{items}\n{text}"))
        })
        .collect();
    refused("pool-types", "a pool, which writes", &programs_or_named(&programs));
}

/// The attribute says it of a name, the compiler of a type.
fn programs_or_named(programs: &[(String, String)]) -> Vec<(String, String)> {
    programs.iter().filter(|(name, _)| !name.contains("PgPool") && !name.contains("Pool<")).cloned().collect()
}

/// Programs in which a name looks like a pool and is none, or a pool is only looked at.
#[test]
fn what_is_no_pool_is_left_alone() {
    let bodies = [
        ("State(state): State<Shop>", "let level = state.sound.louder(state.sound.db); let _ = level;"),
        ("State(state): State<Shop>", "let db = state.sound.db; let _ = state.sound.execute(&db);"),
        ("Extension(Sound { db, .. }): Extension<Sound>", "let _ = db + 1;"),
        ("Extension(sound): Extension<Sound>", "let _ = sound.begin();"),
        ("State(state): State<Shop>", "let size = state.pool.size(); let _ = size;"),
        ("State(state): State<Shop>", "assert!(!state.pool.is_closed());"),
        ("State(Repo(..)): State<Repo>", ""),
        ("State(repo): State<Repo>", "repo.find(tx).await?;"),
        ("State(state): State<Shop>", "state.repo.find(tx).await?;"),
        (
            "",
            "let conn: &mut sqlx::PgConnection = tx; insert_on(conn).await?; sqlx::query(\"SELECT 1\").execute(&mut *conn).await?;",
        ),
        ("", "let conn = tx.acquire().await?; sqlx::query(\"SELECT 1\").execute(&mut *conn).await?;"),
        ("", "let mut db = tx.begin().await?; sqlx::query(\"SELECT 1\").execute(&mut *db).await?; db.commit().await?;"),
        ("", "insert_on(tx).await?; insert_on(&mut *tx).await?; insert_on(&mut **tx).await?;"),
        ("", "let thread_pool = vec![1]; let _ = thread_pool.get(0);"),
        ("", "let pg: &str = \"page\"; let _ = pg.get(0..1);"),
        ("", "let mut database = std::collections::HashMap::new(); database.insert(1, 2); let _ = database.get(&1);"),
        ("", "sqlx::query(\"INSERT INTO a VALUES ($1)\").bind(&new.number).execute(&mut *tx).await?;"),
    ];
    let programs: Vec<_> =
        bodies.iter().map(|(arguments, body)| (format!("{arguments} {body}"), handler("", arguments, body))).collect();
    accepted("no-pools", &programs);
}

/// Where the text hides: items or statements before, and the argument.
const TEXTS: &[(&str, &str)] = &[
    ("", "\"COMMIT\""),
    ("", "\"commit;\""),
    ("", "r#\" -- done\n COMMIT\"#"),
    ("", "\"SELECT 1; ROLLBACK\""),
    ("", "concat!(\"COM\", \"MIT\")"),
    ("", "{ \"END\" }"),
    ("let sql = \"COMMIT\";", "sql"),
    ("const SQL: &str = \"COMMIT\";", "SQL"),
    ("static SQL: &str = \"BEGIN\";", "SQL"),
    ("const COMMIT: &str = include_str!(\"/dev/null\");", "COMMIT"),
];

/// What takes it.
const CALLS: &[&str] = &[
    "sqlx::query(SQL).execute(&mut *tx).await?;",
    "sqlx::raw_sql(SQL).execute(&mut *tx).await?;",
    "let _: (i64,) = sqlx::query_as(SQL).fetch_one(&mut *tx).await?;",
    "let _: Option<i64> = sqlx::query_scalar(SQL).fetch_optional(&mut *tx).await?;",
    "tx.execute(SQL).await?;",
    "(&mut *tx).execute(SQL).await?;",
    "(&mut **tx).execute(SQL).await?;",
    "let _ = tx.fetch_all(SQL).await?;",
    "let _ = tx.fetch(SQL);",
    "let _ = Executor::execute(&mut *tx, SQL).await?;",
    "QueryBuilder::<Postgres>::new(SQL).build().execute(&mut *tx).await?;",
    "let mut builder = QueryBuilder::<Postgres>::new(\"SELECT 1;\"); builder.push(SQL); builder.build().execute(&mut *tx).await?;",
    "sqlx::query(sqlx::AssertSqlSafe(SQL)).execute(&mut *tx).await?;",
    "sqlx::query(sqlx::AssertSqlSafe(String::from(SQL))).execute(&mut *tx).await?;",
    "sqlx::query(sqlx::AssertSqlSafe(SQL.to_owned())).execute(&mut *tx).await?;",
    "use sqlx::query as q; q(SQL).execute(&mut *tx).await?;",
    "macro_rules! run { ($sql:expr) => { sqlx::query($sql) } } run!(SQL).execute(&mut *tx).await?;",
    "for sql in [\"SELECT 1\", SQL] { sqlx::query(sql).execute(&mut *tx).await?; }",
    "let mut savepoint = tx.begin().await?; savepoint.execute(SQL).await?; savepoint.commit().await?;",
];

#[test]
fn transaction_control_is_found_wherever_it_hides() {
    let mut programs = Vec::new();
    for (before, text) in TEXTS {
        for call in CALLS {
            let body = format!("{before} {}", call.replace("SQL", &sql_in(text)));
            programs.push((body.clone(), handler("", "", &body)));
        }
    }
    refused("sql", "must not stand in the SQL", &programs);
}

/// As a receiver, a block needs parentheses.
fn sql_in(text: &str) -> String {
    if text.starts_with('{') { format!("({text})") } else { text.to_owned() }
}

#[test]
fn words_that_are_no_sql_are_left_alone() {
    let items = "pub struct Workflow;\nimpl Workflow {\n fn execute(&self, _: &str) -> &Self { self }\n fn query(&self, _: &str) -> &Self { self }\n\
         fn push(&self, _: &str) {}\n fn fetch(&self, _: &str) {}\n fn commit(&self) {}\n fn rollback(&self) {}\n fn prepare(&self, _: &str) {}\n}\n\
         mod graphql { pub fn query(_: &str) {} }\nasync fn record(_: &mut Tx, _: &str) {}";
    let bodies = [
        "Workflow.execute(\"commit\").query(\"commit\").push(\"rollback\");",
        "Workflow.fetch(\"BEGIN\"); Workflow.prepare(\"COMMIT\"); Workflow.commit(); Workflow.rollback();",
        "graphql::query(\"commit\");",
        "record(tx, \"commit\").await;",
        "let mut words = Vec::new(); words.push(\"COMMIT\");",
        "sqlx::query(\"INSERT INTO events (kind) VALUES ($1)\").bind(\"COMMIT\").execute(&mut *tx).await?;",
        "let kind = \"commit\"; sqlx::query(\"INSERT INTO events (kind) VALUES ($1)\").bind(kind).execute(&mut *tx).await?;",
        "sqlx::query(\"UPDATE repositories SET commit = $1\").execute(&mut *tx).await?;",
        "let row = sqlx::query(\"SELECT commit FROM repositories\").fetch_one(&mut *tx).await?; let _: String = row.get(\"commit\");",
        "match new.number.as_str() { \"commit\" => {}, \"begin\" => {}, _ => {} }",
        "println!(\"COMMIT\"); let text = format!(\"BEGIN {}\", new.number); drop(text);",
        "let mut savepoint = tx.begin().await?; sqlx::query(\"SELECT 1\").execute(&mut *savepoint).await?; savepoint.commit().await?;",
        "{ let mut tx = tx.begin().await?; sqlx::query(\"SELECT 1\").execute(&mut *tx).await?; tx.commit().await?; }",
        "{ let mut tx = tx.begin().await?; sqlx::query(\"SELECT 1\").execute(&mut *tx).await?; tx.rollback().await?; }",
        "sqlx::query(\"SAVEPOINT a\").execute(&mut *tx).await?; sqlx::query(\"ROLLBACK TO a\").execute(&mut *tx).await?;",
        "sqlx::query(\"DO $$ BEGIN PERFORM 1; END $$\").execute(&mut *tx).await?;",
        "let mut rows: QueryBuilder<Postgres> = QueryBuilder::new(\"INSERT INTO a \"); rows.push_values([1, 2], |mut row, value| { row.push_bind(value); }); rows.build().execute(&mut *tx).await?;",
    ];
    let programs: Vec<_> =
        bodies.iter().map(|body| ((*body).to_owned(), format!("{items}\n{}", handler("", "", body)))).collect();
    accepted("words", &programs);
}

/// Expressions that are the same, or another, for each request.
const UNFIT: &[&str] = &[
    "\"orders\"",
    "String::from(\"orders\")",
    "\"orders\".to_string()",
    "{ \"orders\" }",
    "(\"orders\")",
    "format!(\"orders\")",
    "format!(\"{}\", 1)",
    "concat!(\"a\", \"b\")",
    "SHOP",
    "super::super::application::SHOP_NAME",
    "shop()",
    "7",
    "&\"orders\"",
    "(\"orders\", 1)",
    "if true { \"a\" } else { \"b\" }",
    "uuid::Uuid::new_v4()",
    "uuid::Uuid::new_v4().to_string()",
    "format!(\"{}-{}\", tenant.id, uuid::Uuid::now_v7())",
    "(tenant.id, std::time::SystemTime::now().elapsed().unwrap().as_secs())",
    "headers.get(\"x\").and_then(|value| value.to_str().ok()).unwrap_or_default()",
    "headers.get(\"x\").and_then(|value| value.to_str().ok()).unwrap_or(\"\")",
    "headers.get(\"x\").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()",
    "headers.get(\"x\").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_else(String::new)",
    "tenant.parent.unwrap_or_default()",
    "tenant.parent.map_or(String::new(), |parent| parent.to_string())",
];

#[test]
fn a_value_that_names_nobody_is_refused() {
    let mut programs = Vec::new();
    for value in UNFIT {
        for option in ["scope", "key"] {
            let options = match option {
                "scope" => format!("scope = {value}, ttl = \"24h\""),
                _ => format!("scope = global, key = {value}, ttl = \"24h\""),
            };
            programs.push((format!("{option} = {value}"), with_options(&options)));
        }
    }
    for value in
        ["()", "1", "\"order\"", "SHOP", "format!(\"a\")", "[1, 2]", "shop()", "uuid::Uuid::new_v4().to_string()"]
    {
        let options = format!("scope = tenant.id, ttl = \"24h\", fingerprint = {value}");
        programs.push((format!("fingerprint = {value}"), with_options(&options)));
    }
    for (scope, key) in [
        ("tenant.id", "tenant.id"),
        ("tenant.id", "(tenant.id)"),
        ("tenant.id", "tenant.id.to_string()"),
        ("tenant.id", "format!(\"{}\", tenant.id)"),
        ("(tenant.id, new.number)", "new.number"),
        ("(tenant.id, &new.number)", "new.number.clone()"),
        ("tenant.name", "&tenant.name"),
        ("tenant.name.to_lowercase()", "tenant.name"),
    ] {
        let options = format!("scope = {scope}, key = {key}, ttl = \"24h\"");
        programs.push((options.clone(), with_options(&options)));
    }
    let outcomes = batch::compile("values", &programs);
    let faults =
        outcomes.iter().filter(|outcome| !matches!(outcome.errors.as_slice(), [error] if is_about_the_value(error)));
    let faults: Vec<String> = faults.map(|outcome| format!("{}: {:#?}", outcome.name, outcome.errors)).collect();
    println!("{} programs that must be refused", programs.len());
    batch::report(&faults);
}

fn is_about_the_value(error: &str) -> bool {
    ["`scope`", "`key`", "`fingerprint`"].iter().any(|option| error.contains(option))
        && !error.contains("attribute")
        && error.contains("use ")
}

fn with_options(options: &str) -> String {
    format!(
        r#"const SHOP: &str = "shop";
fn shop() -> &'static str {{ "shop" }}
use axum::http::HeaderMap;
#[idempotent({options})]
pub async fn create_order(tenant: Tenant, headers: HeaderMap, tx: &mut Tx, Json(new): Json<NewOrder>) -> StatusCode {{
    save(tx).await
}}
fn route() {{ routed(post(create_order)); }}
"#
    )
}

#[test]
fn a_value_of_the_request_is_left_alone() {
    let mut programs = Vec::new();
    for scope in [
        "tenant.id",
        "(tenant.id, \"orders\")",
        "(SHOP, tenant.id)",
        "format!(\"{}-orders\", tenant.id)",
        "format!(\"{SHOP}-{}\", tenant.name)",
        "tenant.parent.unwrap_or(tenant.id)",
        "headers.get(\"x\").and_then(|value| value.to_str().ok()).unwrap_or(\"anonymous\")",
        "(tenant.id, headers.get(\"x\").and_then(|value| value.to_str().ok()).unwrap_or_default())",
        "owner(&tenant)",
        "owner(tenant)",
        "match tenant.parent { Some(parent) => parent, None => tenant.id }",
        "global",
    ] {
        for key in [
            "",
            ", key = optional",
            ", key = new.number",
            ", key = format!(\"{}-{}\", tenant.id, new.number)",
            ", key = (new.total)",
        ] {
            let options = format!("scope = {scope}{key}, ttl = \"24h\"");
            let text = format!("fn owner(tenant: &Tenant) -> i64 {{ tenant.id }}\n{}", with_options(&options));
            programs.push((options, text));
        }
    }
    accepted("fit-values", &programs);
}

/// An operation whose parts are written as `parts`.
fn operation(parts: &str) -> String {
    format!(
        r#"async fn charge(key: idem_runtime::IdempotencyKey, item: i64) -> Result<i64, ApiError> {{ Ok(item) }}
async fn insert(tx: &mut Tx, item: i64) -> Result<i64, ApiError> {{ save(tx).await; Ok(item) }}
#[idempotent(scope = tenant.id, ttl = "24h")]
pub async fn check_out(tenant: Tenant, op: &mut Operation, Json(items): Json<Vec<i64>>) -> Result<StatusCode, ApiError> {{
    {parts}
    Ok(StatusCode::CREATED)
}}
fn route() {{ routed(post(check_out)); }}
"#
    )
}

const PARTS: &[&str] = &[
    "op.step(NAME, async |key| charge(key, item).await).await?;",
    "op.transaction(NAME, async |tx| insert(tx, item).await).await?;",
    "op.step(NAME, async |key| charge(key, item).await).reconcile(async |_key| Ok(None)).await?;",
];

const LOOPS: &[&str] = &[
    "for (index, item) in items.into_iter().enumerate() { PART }",
    "let mut index = 0; let mut rest = items; while let Some(item) = rest.pop() { index += 1; PART }",
    "let (item, mut index) = (1, 0); while index < 2 { index += 1; PART }",
    "let (item, mut index) = (1, 0); loop { index += 1; if index > 2 { break; } PART }",
    "'all: for (index, item) in items.into_iter().enumerate() { if item > 0 { PART } else { continue 'all; } }",
];

#[test]
fn a_part_in_a_loop_needs_an_index() {
    let mut refused_programs = Vec::new();
    let mut accepted_programs = Vec::new();
    for part in PARTS {
        for around in LOOPS {
            for receiver in ["op", "other"] {
                let before = if receiver == "op" { "" } else { "let other = &mut *op;" };
                let body =
                    format!("{before} {}", around.replace("PART", &part.replace("op.", &format!("{receiver}."))));
                refused_programs.push((body.clone(), operation(&body.replace("NAME", "\"charge\""))));
                accepted_programs.push((body.clone(), operation(&body.replace("NAME", "(\"charge\", index)"))));
            }
        }
    }
    refused_programs.push((
        "closure".to_owned(),
        operation("let mut pay = async |item: i64| op.step(\"charge\", async move |key| charge(key, item).await).await; pay(1).await?; pay(2).await?;"),
    ));
    refused("loops", "must have a name for each round", &refused_programs);
    for parts in [
        "op.transaction(\"all\", async |tx| { for item in items { insert(tx, item).await?; } Ok::<_, ApiError>(()) }).await?;",
        "let sum: i64 = items.iter().map(|item| item + 1).sum(); op.step(\"charge\", async |key| charge(key, sum).await).await?;",
        "for item in &items { if *item < 0 { return Ok(StatusCode::BAD_REQUEST); } } op.step(\"charge\", async |key| charge(key, 1).await).await?;",
        "let id = op.transaction(\"a\", async |tx| insert(tx, 1).await).await?; if id > 0 { op.step(\"b\", async |key| charge(key, id).await).await?; }",
        "op.transaction(\"a\", async |db| { let mut db = db.begin().await?; sqlx::query(\"SELECT 1\").execute(&mut *db).await?; db.commit().await?; Ok::<_, ApiError>(1) }).await?;",
        "op.transaction(\"a\", async |tx| { let mut tx = tx.begin().await?; sqlx::query(\"SELECT 1\").execute(&mut *tx).await?; tx.commit().await?; Ok::<_, ApiError>(1) }).await?;",
        "op.step((\"charge\", tenant.id), async |key| charge(key, 1).await).await?;",
        "let item = match items.first() { Some(item) | None if false => 1, _ => 2 }; op.step(\"charge\", async |key| charge(key, item).await).await?;",
    ] {
        let text = operation(parts).replace("Some(item) | None if false => 1, _ => 2", "Some(1 | 2) => 1, _ => 2");
        accepted_programs.push((parts.to_owned(), format!("use sqlx::Connection;\n{text}")));
    }
    accepted("indexed", &accepted_programs);
}
