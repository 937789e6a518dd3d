//! What an application's database and its other code bring along: roles, search paths with hostile functions in them, triggers,
//! values that JSON does not give back, bodies that are too long.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{BytesRejection, FormRejection, JsonRejection};
use axum::extract::{DefaultBodyLimit, FromRef, State};
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::{Form, Json, Router};
use bytes::Bytes;
use idem_runtime::{Error, Idempotency, Operation, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{Reply, Tenant, request};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};
use tower::ServiceExt;

/// What a handler runs, and how it ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Work {
    sql: String,
    status: u16,
}

#[derive(Debug)]
struct Failed(StatusCode);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        // A commit that the database refuses is the handler's to answer for.
        Self(match error {
            Error::Database(_) => StatusCode::CONFLICT,
            Error::Json(_) => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        })
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        self.0.into_response()
    }
}

async fn run(tx: &mut Tx, work: &Work) -> Result<(), Failed> {
    let ran = sqlx::raw_sql(AssertSqlSafe(work.sql.clone())).execute(&mut *tx).await;
    ran.map(drop).map_err(|error| panic!("{}: {error}", work.sql))
}

fn status(work: &Work) -> StatusCode {
    StatusCode::from_u16(work.status).expect("a status")
}

#[idempotent(scope = tenant.id, ttl = "24h", key = optional)]
async fn transaction(tenant: Tenant, tx: &mut Tx, Json(work): Json<Work>) -> Result<StatusCode, Failed> {
    run(tx, &work).await?;
    Ok(status(&work))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn first_part(tenant: Tenant, op: &mut Operation, Json(work): Json<Work>) -> Result<StatusCode, Failed> {
    op.transaction("work", async |tx| run(tx, &work).await).await?;
    Ok(status(&work))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn later_part(tenant: Tenant, op: &mut Operation, Json(work): Json<Work>) -> Result<StatusCode, Failed> {
    op.step("call", async |_| Ok::<_, Failed>(1)).await?;
    op.transaction("work", async |tx| run(tx, &work).await).await?;
    Ok(status(&work))
}

#[idempotent(scope = "surroundings", key = key, ttl = "24h")]
async fn function(idempotency: &Idempotency, key: String, tx: &mut Tx, work: Work) -> Result<u16, Failed> {
    run(tx, &work).await?;
    Ok(work.status)
}

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
}

struct World {
    database: TestDatabase,
    /// As the owner.
    direct: PgPool,
    pool: PgPool,
    idempotency: Idempotency,
    router: Router,
}

impl World {
    async fn over(database: TestDatabase, pool: PgPool) -> Self {
        let idempotency = Idempotency::new(pool.clone());
        let router = Router::new()
            .route("/transaction", post(transaction))
            .route("/first", post(first_part))
            .route("/later", post(later_part))
            .with_state(AppState { idempotency: idempotency.clone() });
        Self { direct: database.pool(), database, pool, idempotency, router }
    }

    async fn start() -> Self {
        let database = TestDatabase::create().await.expect("a database");
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(database.connect_options());
        let world = Self::over(database, pool).await;
        idem_tests::create_tables(&world.direct).await;
        world.idempotency.migrate().await.expect("the migrations");
        world
    }

    async fn run(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&self.direct)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn count(&self, what: &str) -> i64 {
        let count = format!("SELECT count(*) FROM {what}");
        sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&self.direct).await.expect("a count")
    }

    /// The status of each kind of handler's answer to the same work, and of its retry.
    async fn everywhere(&self, name: &str, work: &Work) -> Vec<(&'static str, u16, u16)> {
        let mut answers = Vec::new();
        for path in ["/transaction", "/first", "/later"] {
            let mut both = Vec::new();
            for _ in 0..2 {
                let headers = [("tenant", path), ("idempotency-key", name)];
                let sent = self.router.clone().oneshot(request(path, &headers, work)).await.expect("an answer");
                both.push(Reply::of(sent).await.status);
            }
            answers.push((path, both[0], both[1]));
        }
        let mut called = Vec::new();
        for _ in 0..2 {
            called.push(match function(&self.idempotency, name.to_owned(), work.clone()).await {
                Ok(status) => status,
                Err(Failed(status)) => status.as_u16(),
            });
        }
        answers.push(("function", called[0], called[1]));
        answers
    }
}

/// Our statements run as the role that began, whatever role the handler has taken for its own.
#[tokio::test]
async fn a_handler_may_take_another_role_for_its_own_statements_47() {
    let world = World::start().await;
    let role = format!("{}_customer", world.database.name());
    world
        .run(&format!(
            "CREATE ROLE {role}; GRANT SELECT, INSERT ON entries TO {role}; GRANT USAGE ON SEQUENCE entries_id_seq TO {role}; \
             ALTER TABLE entries ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON entries TO {role} USING (true) WITH CHECK (true)"
        ))
        .await;
    let mut effects = 0;
    for (number, change) in [
        format!("SET LOCAL ROLE {role}"),
        format!("SET ROLE {role}"),
        format!("SELECT set_config('role', '{role}', true)"),
        format!("SELECT set_config('role', '{role}', false)"),
        format!("SET LOCAL SESSION AUTHORIZATION {role}"),
        format!("SET SESSION AUTHORIZATION {role}"),
    ]
    .into_iter()
    .enumerate()
    {
        for status in [201, 409, 503] {
            let work = Work { sql: format!("{change}; INSERT INTO entries (text) VALUES ('as {role}')"), status };
            let answers = world.everywhere(&format!("{number}-{status}"), &work).await;
            for answer in &answers {
                assert_eq!((answer.1, answer.2), (status, status), "{change}: {answers:?}");
            }
            // Parts are committed whatever the handler answers; a function has no status; a failure runs again.
            effects += match status {
                201 => 4,
                409 => 3,
                _ => 3,
            };
            assert_eq!(world.count("entries").await, effects, "{change} {status}: {answers:?}");
            for _ in 0..3 {
                let user = "SELECT current_user::text = session_user::text AND current_user::text <> $1";
                let own: bool =
                    sqlx::query_scalar(user).bind(&role).fetch_one(&world.pool).await.expect("a user of the pool");
                assert!(own, "{change}: the pool's connection has kept the role");
            }
        }
    }
    world.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// A deferred trigger of the application's raises at the commit: that is the handler's to answer for, whatever the code, and is never
/// taken for a check of ours.
#[tokio::test]
async fn a_deferred_triggers_error_is_never_taken_for_a_check_of_ours() {
    let world = World::start().await;
    world
        .run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ \
             BEGIN RAISE EXCEPTION USING ERRCODE = NEW.text; END $$; \
             CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON entries DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    for code in ["22012", "22P02", "23514", "23505", "25P01", "25P02", "P0001", "40001", "U0001"] {
        let work = Work { sql: format!("INSERT INTO entries (text) VALUES ('{code}')"), status: 201 };
        for (path, first, again) in world.everywhere(code, &work).await {
            let expected: &[u16] = match (code, path) {
                // Nobody knows this code, so the outcome is looked up, while the connection that was given up may still hold the key.
                ("U0001", _) => &[409, 500, 503],
                ("40001", _) => &[500, 503],
                (_, "/transaction") => &[500],
                _ => &[409],
            };
            assert!(expected.contains(&first) && expected.contains(&again), "{code} {path}: {first}, {again}");
        }
    }
    assert_eq!(world.count("entries").await, 0);
    assert_eq!(world.count("idem.idempotency_keys WHERE status = 0").await, 0, "no escape");
}

#[derive(Serialize, Deserialize)]
struct Skips {
    #[serde(skip_serializing)]
    amount: i32,
}

#[idempotent(scope = "results", key = kind, ttl = "24h")]
async fn result_of(idempotency: &Idempotency, kind: String, tx: &mut Tx, value: f64) -> Result<f64, Failed> {
    run(tx, &Work { sql: "INSERT INTO entries (text) VALUES ('result')".to_owned(), status: 0 }).await?;
    Ok(value)
}

#[idempotent(scope = "skips", key = kind, ttl = "24h")]
async fn skipping(idempotency: &Idempotency, kind: String, op: &mut Operation) -> Result<Skips, Failed> {
    op.transaction("skips", async |tx| {
        run(tx, &Work { sql: "INSERT INTO entries (text) VALUES ('result')".to_owned(), status: 0 }).await?;
        Ok::<_, Failed>(Skips { amount: 7 })
    })
    .await
}

#[tokio::test]
async fn a_result_that_is_not_given_back_fails_before_anything_is_committed_48_49() {
    let world = World::start().await;
    let idempotency = &world.idempotency;
    for _ in 0..2 {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let failed = result_of(idempotency, format!("{value}"), value).await;
            assert_eq!(failed.expect_err("no JSON").0, StatusCode::UNPROCESSABLE_ENTITY);
        }
        let failed = skipping(idempotency, "skips".to_owned()).await;
        assert_eq!(failed.map(|skips| skips.amount).expect_err("no JSON").0, StatusCode::UNPROCESSABLE_ENTITY);
    }
    assert_eq!(world.count("entries").await, 0);
    for value in [0.1 + 0.2, 1.0 / 3.0, f64::MAX, f64::MIN_POSITIVE, 5e-324, -0.0, 123_456_789.123_456_79] {
        for _ in 0..2 {
            let given = result_of(idempotency, format!("float {value}"), value).await.expect("a result");
            assert_eq!(given.to_bits(), value.to_bits(), "{value}");
        }
    }
    assert_eq!(world.count("entries").await, 7);
}

/// Each function and operator that our statements use, as anyone with CREATE in a schema of the search path could make it.
async fn make_hostile(world: &World) -> usize {
    let source = [
        include_str!("../../idem-runtime/src/postgres/statements/mod.rs"),
        include_str!("../../idem-runtime/src/postgres/statements/mark.rs"),
        include_str!("../../idem-runtime/src/postgres/statements/claim.rs"),
        include_str!("../../idem-runtime/src/postgres/statements/steps.rs"),
        include_str!("../../idem-runtime/src/postgres/schema.rs"),
        include_str!("../../idem-runtime/src/outbox/statements.rs"),
    ];
    world.run("CREATE TABLE public.hostile (what text); GRANT INSERT ON public.hostile TO PUBLIC").await;
    let functions = "SELECT DISTINCT p.oid::regprocedure::text, p.proname, pg_get_function_arguments(p.oid), \
                     pg_get_function_result(p.oid) FROM pg_proc AS p \
                     WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0 \
                       AND pg_get_function_result(p.oid) NOT LIKE '%internal%' AND NOT p.proretset";
    let functions: Vec<(String, String, String, String)> =
        sqlx::query_as(functions).fetch_all(&world.direct).await.expect("the functions");
    let mut made = 0;
    for (_, name, arguments, result) in &functions {
        if source.iter().any(|source| source.contains(&format!("{name}("))) {
            let create = format!(
                "CREATE FUNCTION public.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS $$ \
                 BEGIN INSERT INTO public.hostile VALUES ('{name}'); RETURN NULL; END $$"
            );
            if sqlx::raw_sql(AssertSqlSafe(create)).execute(&world.direct).await.is_ok() {
                made += 1;
            }
        }
    }
    world
        .run(
            "CREATE FUNCTION public.make_interval(secs numeric) RETURNS interval LANGUAGE plpgsql AS $$ \
             BEGIN INSERT INTO public.hostile VALUES ('make_interval'); RETURN NULL; END $$; \
             CREATE FUNCTION public.power(integer, integer) RETURNS float8 LANGUAGE plpgsql AS $$ \
             BEGIN INSERT INTO public.hostile VALUES ('power'); RETURN NULL; END $$",
        )
        .await;
    let operators = "SELECT DISTINCT o.oprname, o.oprleft::regtype::text, o.oprright::regtype::text, o.oprresult::regtype::text \
                     FROM pg_operator AS o WHERE o.oprname = ANY ($1) AND o.oprleft <> 0 \
                       AND o.oprleft::regtype::text !~ 'any|internal' AND o.oprright::regtype::text !~ 'any|internal'";
    let names = ["=", "<>", "<=", "<", ">>", ">", "+", "-", "*", "/", "||", "&"];
    let operators: Vec<(String, String, String, String)> =
        sqlx::query_as(operators).bind(&names[..]).fetch_all(&world.direct).await.expect("the operators");
    for (number, (operator, left, right, result)) in operators.iter().enumerate() {
        let create = format!(
            "CREATE FUNCTION public.hostile_{number}({left}, {right}) RETURNS {result} LANGUAGE plpgsql AS $$ \
             BEGIN INSERT INTO public.hostile VALUES ('{operator}'); RETURN NULL; END $$; \
             CREATE OPERATOR public.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.hostile_{number})"
        );
        if sqlx::raw_sql(AssertSqlSafe(create)).execute(&world.direct).await.is_ok() {
            made += 1;
        }
    }
    made
}

/// An overload in a schema of the search path must not run as the application, nor as the role that migrates.
#[tokio::test]
async fn no_statement_of_ours_calls_what_stands_before_it_in_the_search_path() {
    let world = World::start().await;
    let made = make_hostile(&world).await;
    assert!(made > 200, "{made} overloads");
    for path in ["public, pg_catalog", "\"$user\", public"] {
        let options = world.database.connect_options().options([("search_path", path)]);
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options);
        let other = TestDatabase::create().await.expect("a database");
        let idempotency =
            Idempotency::builder(pool.clone()).schema(format!("idem_{}", path.len())).build().expect("settings");
        idempotency.migrate().await.expect("the migrations");
        idempotency.migrate().await.expect("nothing to do");
        drop(other);
        let attacked = Router::new()
            .route("/transaction", post(transaction))
            .route("/first", post(first_part))
            .route("/later", post(later_part))
            .with_state(AppState { idempotency: idempotency.clone() });
        for status in [201, 409, 503] {
            for route in ["/transaction", "/first", "/later"] {
                for _ in 0..2 {
                    // The handler's own statement calls nothing.
                    let work = Work { sql: "INSERT INTO notes VALUES (1); DELETE FROM notes".to_owned(), status };
                    let key = format!("k{status}");
                    let headers = [("tenant", route), ("idempotency-key", key.as_str())];
                    let sent = attacked.clone().oneshot(request(route, &headers, &work)).await.expect("an answer");
                    let reply = Reply::of(sent).await;
                    assert_eq!(reply.status, status, "{path} {route}: {reply:?}");
                }
            }
        }
        idempotency.sweep().await.expect("a sweep");
        idempotency.status("/first", "k201").await.expect("a status");
        assert!(idempotency.failed_operations(10).await.expect("a list").is_empty());
        let relay = idempotency.relay();
        drop(relay);
        assert_eq!(world.count("public.hostile").await, 0, "{path}");
    }
}

#[idempotent(scope = global, ttl = "24h")]
async fn json(tx: &mut Tx, Json(_): Json<Work>) -> StatusCode {
    ran(tx).await
}

#[idempotent(scope = global, ttl = "24h")]
async fn json_result(tx: &mut Tx, body: Result<Json<Work>, JsonRejection>) -> Result<StatusCode, (StatusCode, String)> {
    let status = ran(tx).await;
    body.map(|_| status).map_err(|rejection| (rejection.status(), format!("own words: {}", rejection.body_text())))
}

#[idempotent(scope = global, ttl = "24h")]
async fn form(tx: &mut Tx, Form(_): Form<Work>) -> StatusCode {
    ran(tx).await
}

#[idempotent(scope = global, ttl = "24h")]
async fn form_result(tx: &mut Tx, body: Result<Form<Work>, FormRejection>) -> Result<StatusCode, (StatusCode, String)> {
    let status = ran(tx).await;
    body.map(|_| status).map_err(|rejection| (rejection.status(), rejection.body_text()))
}

#[idempotent(scope = global, ttl = "24h")]
async fn bytes(tx: &mut Tx, _: Bytes) -> StatusCode {
    ran(tx).await
}

#[idempotent(scope = global, ttl = "24h")]
async fn bytes_result(tx: &mut Tx, body: Result<Bytes, BytesRejection>) -> Result<StatusCode, (StatusCode, String)> {
    let status = ran(tx).await;
    body.map(|_| status).map_err(|rejection| (rejection.status(), rejection.body_text()))
}

async fn ran(tx: &mut Tx) -> StatusCode {
    sqlx::query("SELECT 1").execute(tx).await.expect("a query");
    StatusCode::CREATED
}

/// The same extractors without the attribute.
fn plain() -> Router {
    let words = |status: StatusCode, text: String| (status, text);
    Router::new()
        .route("/json", post(async |_: Json<Work>| StatusCode::CREATED))
        .route(
            "/json_result",
            post(async move |body: Result<Json<Work>, JsonRejection>| {
                body.map(|_| StatusCode::CREATED)
                    .map_err(|r| words(r.status(), format!("own words: {}", r.body_text())))
            }),
        )
        .route("/form", post(async |_: Form<Work>| StatusCode::CREATED))
        .route(
            "/form_result",
            post(async move |body: Result<Form<Work>, FormRejection>| {
                body.map(|_| StatusCode::CREATED).map_err(|r| words(r.status(), r.body_text()))
            }),
        )
        .route("/bytes", post(async |_: Bytes| StatusCode::CREATED))
        .route(
            "/bytes_result",
            post(async move |body: Result<Bytes, BytesRejection>| {
                body.map(|_| StatusCode::CREATED).map_err(|r| words(r.status(), r.body_text()))
            }),
        )
        .layer(DefaultBodyLimit::max(100))
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_refused_as_plain_axum_refuses_it_57() {
    let world = World::start().await;
    let attributed = Router::new()
        .route("/json", post(json))
        .route("/json_result", post(json_result))
        .route("/form", post(form))
        .route("/form_result", post(form_result))
        .route("/bytes", post(bytes))
        .route("/bytes_result", post(bytes_result))
        .layer(DefaultBodyLimit::max(100))
        .with_state(AppState { idempotency: world.idempotency.clone() });
    for (number, path) in
        ["/json", "/json_result", "/form", "/form_result", "/bytes", "/bytes_result"].into_iter().enumerate()
    {
        for broken in [false, true] {
            let body = || {
                if broken {
                    let parts = [Ok(Bytes::from_static(b"{")), Err(std::io::Error::other("the client is gone"))];
                    Body::from_stream(futures_util::stream::iter(parts))
                } else {
                    Body::from(vec![b' '; 101])
                }
            };
            let media_type =
                if path.starts_with("/form") { "application/x-www-form-urlencoded" } else { "application/json" };
            let request = |key: String| {
                let request = Request::post(path).header("content-type", media_type).header("idempotency-key", key);
                request.body(body()).expect("a request")
            };
            let key = || format!("k{number}-{broken}");
            let expected = Reply::of(plain().oneshot(request(key())).await.expect("an answer")).await;
            let reply = Reply::of(attributed.clone().oneshot(request(key())).await.expect("an answer")).await;
            assert_eq!((reply.status, &reply.body), (expected.status, &expected.body), "{path} {broken}");
            assert_eq!(reply.header("content-type"), expected.header("content-type"), "{path} {broken}");
        }
    }
}

mod refunds {
    use super::{Error, Failed, Idempotency, Tx, Work, run};
    use idem_runtime::idempotent;

    #[idempotent(scope = "events", key = id, ttl = "24h", fingerprint = id)]
    pub(super) async fn on_event(idempotency: &Idempotency, id: String, tx: &mut Tx) -> Result<String, Failed> {
        let _: Option<Error> = None;
        run(tx, &Work { sql: "INSERT INTO entries (text) VALUES ('refund')".to_owned(), status: 0 }).await?;
        Ok("refunded".to_owned())
    }
}

mod charges {
    use super::{Failed, Idempotency, Tx, Work, run};
    use idem_runtime::idempotent;

    #[idempotent(scope = "events", key = id, ttl = "24h", fingerprint = id)]
    pub(super) async fn on_event(idempotency: &Idempotency, id: String, tx: &mut Tx) -> Result<String, Failed> {
        run(tx, &Work { sql: "INSERT INTO entries (text) VALUES ('charge')".to_owned(), status: 0 }).await?;
        Ok("charged".to_owned())
    }
}

/// One space of keys, one name, two functions: the second is refused and does not pass for done.
#[tokio::test]
async fn two_functions_of_one_name_do_not_answer_for_each_other_42() {
    let world = World::start().await;
    let first = charges::on_event(&world.idempotency, "evt_1".to_owned()).await.expect("charged");
    assert_eq!(first, "charged");
    assert!(refunds::on_event(&world.idempotency, "evt_1".to_owned()).await.is_err(), "not answered with a charge");
    assert_eq!(refunds::on_event(&world.idempotency, "evt_2".to_owned()).await.expect("refunded"), "refunded");
    assert_eq!(charges::on_event(&world.idempotency, "evt_1".to_owned()).await.expect("recorded"), "charged");
    assert_eq!(world.count("entries").await, 2);
}

#[idempotent(scope = (tenant.id, part), ttl = "24h")]
async fn owned(tenant: Tenant, State(part): State<Arc<String>>, tx: &mut Tx) -> String {
    ran(tx).await;
    tx.key().derive("charge").to_string()
}

#[derive(Clone, FromRef)]
struct OwnedState {
    idempotency: Idempotency,
    part: Arc<String>,
}

#[tokio::test]
async fn one_key_of_two_owners_is_two_keys_at_a_provider_and_nothing_is_no_owner_41() {
    let world = World::start().await;
    let schema = Idempotency::builder(world.pool.clone()).schema("other").build().expect("settings");
    schema.migrate().await.expect("the migrations");
    let mut derived = std::collections::HashSet::new();
    for idempotency in [&world.idempotency, &schema] {
        for part in ["", "a", "b"] {
            let state = OwnedState { idempotency: idempotency.clone(), part: Arc::new(part.to_owned()) };
            let router = Router::new().route("/owned", post(owned)).with_state(state);
            for tenant in ["1", "2"] {
                let headers = [("tenant", tenant), ("idempotency-key", "1")];
                let sent = router.clone().oneshot(request("/owned", &headers, &())).await.expect("an answer");
                let reply = Reply::of(sent).await;
                assert_eq!(reply.status, if part.is_empty() { 500 } else { 200 }, "{reply:?}");
                if reply.status == 200 {
                    assert!(derived.insert(reply.body.clone()), "{reply:?}");
                }
            }
        }
    }
    assert_eq!(derived.len(), 8);
}

#[tokio::test]
async fn what_is_migrated_needs_no_rights_to_be_migrated_and_what_is_not_says_so_60() {
    let world = World::start().await;
    let role = format!("{}_narrow", world.database.name());
    world
        .run(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA idem TO {role}; REVOKE CREATE ON SCHEMA public FROM PUBLIC; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idem TO {role}"
        ))
        .await;
    let pool = PgPoolOptions::new().connect_lazy_with(world.database.connect_options().username(&role));
    Idempotency::new(pool.clone()).migrate().await.expect("there is nothing to do");
    pool.close().await;
    world.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;

    let empty = Idempotency::builder(world.pool.clone()).schema("never_migrated").build().expect("settings");
    let missing = empty.sweep().await.expect_err("no table");
    assert!(missing.to_string().contains("`migrate()`"), "{missing}");
    let state = AppState { idempotency: empty };
    let router = Router::new().route("/transaction", post(transaction)).with_state(state);
    let work = Work { sql: "SELECT 1".to_owned(), status: 201 };
    let headers = [("tenant", "a"), ("idempotency-key", "k")];
    let sent = router.oneshot(request("/transaction", &headers, &work)).await.expect("an answer");
    assert_eq!(Reply::of(sent).await.status, 500);
}

#[tokio::test]
async fn a_database_that_defaults_to_read_only_serves_59() {
    let world = World::start().await;
    let options = world.database.connect_options().options([("default_transaction_read_only", "on")]);
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options);
    let idempotency = Idempotency::new(pool);
    let router = Router::new()
        .route("/transaction", post(transaction))
        .route("/first", post(first_part))
        .route("/later", post(later_part))
        .with_state(AppState { idempotency: idempotency.clone() });
    for path in ["/transaction", "/first", "/later"] {
        let work = Work { sql: "INSERT INTO entries (text) VALUES ('written')".to_owned(), status: 201 };
        for replayed in [false, true] {
            let headers = [("tenant", path), ("idempotency-key", "k")];
            let sent = router.clone().oneshot(request(path, &headers, &work)).await.expect("an answer");
            let reply = Reply::of(sent).await;
            assert_eq!((reply.status, reply.replayed()), (201, replayed), "{path}: {reply:?}");
        }
    }
    assert_eq!(world.count("entries").await, 3);
    idempotency.sweep().await.expect("a sweep");
    idempotency.migrate().await.expect("nothing to do");
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn copying(tenant: Tenant, tx: &mut Tx, Json(work): Json<Work>) -> StatusCode {
    let mut copy = (**tx).copy_in_raw("COPY entries (text) FROM STDIN").await.expect("a copy");
    copy.send(&b"half a row"[..]).await.expect("sent");
    drop(copy);
    status(&work)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn upgrading(tenant: Tenant, tx: &mut Tx) -> StatusCode {
    run(tx, &Work { sql: "INSERT INTO entries (text) VALUES ('upgraded')".to_owned(), status: 0 })
        .await
        .expect("a write");
    StatusCode::SWITCHING_PROTOCOLS
}

#[tokio::test]
async fn a_dropped_copy_leaves_the_handlers_refusal_and_a_clean_connection_54() {
    let world = World::start().await;
    let state = AppState { idempotency: world.idempotency.clone() };
    let router = Router::new().route("/copying", post(copying)).with_state(state);
    for (status, expected) in [(400, 400), (422, 422), (503, 503), (201, 500)] {
        let work = Work { sql: String::new(), status };
        for replayed in [false, true] {
            let key = format!("k{status}");
            let headers = [("tenant", "a"), ("idempotency-key", key.as_str())];
            let sent = router.clone().oneshot(request("/copying", &headers, &work)).await.expect("an answer");
            let reply = Reply::of(sent).await;
            assert_eq!(
                (reply.status, reply.replayed()),
                (expected, replayed && status < 500 && status > 201),
                "{reply:?}"
            );
        }
        for _ in 0..3 {
            sqlx::query("SELECT 1").execute(&world.pool).await.expect("a clean connection");
        }
    }
    assert_eq!(world.count("entries").await, 0);
}

#[tokio::test]
async fn an_upgrade_has_no_outcome_and_changes_nothing() {
    let world = World::start().await;
    let state = AppState { idempotency: world.idempotency.clone() };
    let router = Router::new().route("/upgrading", post(upgrading)).with_state(state);
    for _ in 0..2 {
        let headers = [("tenant", "a"), ("idempotency-key", "k")];
        let sent = router.clone().oneshot(request("/upgrading", &headers, &())).await.expect("an answer");
        let reply = Reply::of(sent).await;
        assert_eq!((reply.status, reply.problem().as_str()), (500, "response-not-storable"));
    }
    assert_eq!((world.count("entries").await, world.count("idem.idempotency_keys").await), (0, 0));
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn waiting(tenant: Tenant, State(gate): State<Arc<idem_tests::Gate>>, tx: &mut Tx) -> StatusCode {
    run(tx, &Work { sql: "INSERT INTO entries (text) VALUES ('waited')".to_owned(), status: 0 })
        .await
        .expect("a write");
    gate.pass().await;
    StatusCode::CREATED
}

#[derive(Clone, FromRef)]
struct Gated {
    idempotency: Idempotency,
    gate: Arc<idem_tests::Gate>,
}

/// Handlers go on without their clients, but only so many of them, and what has not begun is not begun.
#[tokio::test]
async fn clients_that_hang_up_leave_connections_for_others() {
    let world = World::start().await;
    let pool = PgPoolOptions::new().max_connections(6).connect_lazy_with(world.database.connect_options());
    let idempotency = Idempotency::builder(pool).max_detached(2).build().expect("settings");
    let gate = Arc::new(idem_tests::Gate::new());
    let state = Gated { idempotency: idempotency.clone(), gate: Arc::clone(&gate) };
    let router =
        Router::new().route("/waiting", post(waiting)).route("/transaction", post(transaction)).with_state(state);
    let mut begun = 0;
    for number in 0..30 {
        let key = format!("k{number}");
        let headers = [("tenant", "a"), ("idempotency-key", key.as_str())];
        let mut asked = std::pin::pin!(router.clone().oneshot(request("/waiting", &headers, &())));
        tokio::select! {
            () = gate.arrival() => begun += 1,
            _ = &mut asked => panic!("nobody opens the gate"),
            () = tokio::time::sleep(std::time::Duration::from_millis(100)) => {}
        }
        // The client hangs up here.
    }
    assert_eq!(begun, 2, "handlers without a client");
    gate.open(30);
    assert_eq!(idempotency.shutdown().await, 0);
    assert_eq!(world.count("entries").await, 2, "what was not begun is not done");
    let work = Work { sql: "SELECT 1".to_owned(), status: 201 };
    let headers = [("tenant", "a"), ("idempotency-key", "after")];
    let sent = router.oneshot(request("/transaction", &headers, &work)).await.expect("an answer");
    assert_eq!(Reply::of(sent).await.status, 201, "there is room again");
}

/// Another attempt has taken the operation over when the first one's helper commits: neither may go on.
#[tokio::test]
async fn an_escape_ends_an_operation_that_another_attempt_has_taken_over() {
    let world = World::start().await;
    let take_over = "UPDATE idem.idempotency_keys SET token = token + 1, lease_expires_at = clock_timestamp()";
    let work = Work { sql: format!("{take_over}; INSERT INTO entries (text) VALUES ('escaped'); COMMIT"), status: 201 };
    for replayed in [false, true, true] {
        let headers = [("tenant", "a"), ("idempotency-key", "k")];
        let sent = world.router.clone().oneshot(request("/later", &headers, &work)).await.expect("an answer");
        let reply = Reply::of(sent).await;
        assert_eq!((reply.status, reply.problem().as_str()), (500, "effects-unknown"), "{reply:?}");
        assert_eq!(reply.replayed(), replayed);
    }
    assert_eq!(world.count("entries").await, 1);
}
