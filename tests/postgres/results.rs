//! What a function or a part returns is read back before anything is committed: a later attempt gets the same value or none.

use std::collections::BTreeMap;

use idem_runtime::{Error, Idempotency, Operation, Tx, idempotent};
use idem_testing::TestDatabase;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Skips {
    kept: i32,
    #[serde(skip_serializing)]
    left_out: i32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Value {
    Double(f64),
    Single(f32),
    Skips(Skips),
    Map(BTreeMap<(i32, i32), i32>),
}

async fn write(tx: &mut Tx) {
    sqlx::query("INSERT INTO entries (text) VALUES ('result')").execute(tx).await.expect("an entry");
}

#[idempotent(scope = "function", key = id, ttl = "24h")]
async fn function(idempotency: &Idempotency, tx: &mut Tx, id: String, value: Value) -> Result<Value, Error> {
    write(tx).await;
    Ok(value)
}

#[idempotent(scope = "steps", key = id, ttl = "24h")]
async fn in_steps(
    idempotency: &Idempotency,
    op: &mut Operation,
    id: String,
    value: Value,
    later: bool,
    fail: bool,
) -> Result<Value, Error> {
    if later {
        op.transaction("before", async |_| Ok::<_, Error>(())).await?;
    }
    let value = op
        .transaction("part", async |tx| {
            write(tx).await;
            Ok::<_, Error>(value)
        })
        .await?;
    if fail { Err(Error::LostClaim) } else { Ok(value) }
}

async fn start() -> (TestDatabase, sqlx::PgPool, Idempotency) {
    let database = TestDatabase::create().await.expect("a database");
    let pool = database.pool();
    idem_tests::create_tables(&pool).await;
    let idempotency = Idempotency::new(pool.clone());
    idempotency.migrate().await.expect("the migrations");
    (database, pool, idempotency)
}

async fn entries(pool: &sqlx::PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM entries").fetch_one(pool).await.expect("a count")
}

#[tokio::test]
async fn a_result_that_cannot_be_read_back_fails_the_first_time_and_commits_nothing_48() {
    let (_database, pool, idempotency) = start().await;
    let values = [
        Value::Double(f64::NAN),
        Value::Double(f64::INFINITY),
        Value::Single(f32::NEG_INFINITY),
        Value::Skips(Skips { kept: 1, left_out: 2 }),
        Value::Map(BTreeMap::from([((1, 2), 3)])),
    ];
    for (number, value) in values.into_iter().enumerate() {
        for attempt in 0..2 {
            let id = number.to_string();
            let failed = function(&idempotency, id.clone(), value.clone()).await;
            assert!(matches!(failed, Err(Error::Json(_))), "{value:?} {attempt}: {failed:?}");
            for later in [false, true] {
                let id = format!("{id}-{later}");
                let failed = in_steps(&idempotency, id, value.clone(), later, false).await;
                assert!(matches!(failed, Err(Error::Json(_))), "{value:?} {later} {attempt}: {failed:?}");
            }
        }
    }
    assert_eq!(entries(&pool).await, 0);
}

fn same(left: &Value, right: &Value) {
    match (left, right) {
        (Value::Double(left), Value::Double(right)) => assert_eq!(left.to_bits(), right.to_bits()),
        (Value::Single(left), Value::Single(right)) => assert_eq!(left.to_bits(), right.to_bits()),
        _ => panic!("{left:?} {right:?}"),
    }
}

#[tokio::test]
async fn floats_come_back_bit_for_bit_49() {
    let (_database, pool, idempotency) = start().await;
    let mut values: Vec<Value> =
        [0.1, -0.0, 5e-324, f64::MAX, 1.0 / 3.0, 9_007_199_254_740_993.0].map(Value::Double).into();
    values.extend([0.1, -0.0, 1e-45, f32::MAX, 1.0 / 3.0, 16_777_216.0].map(Value::Single));
    let mut random = fastrand::Rng::with_seed(49);
    for _ in 0..40 {
        let (double, single) = (f64::from_bits(random.u64(..)), f32::from_bits(random.u32(..)));
        values.extend(double.is_finite().then_some(Value::Double(double)));
        values.extend(single.is_finite().then_some(Value::Single(single)));
    }
    for (number, value) in values.iter().enumerate() {
        let id = number.to_string();
        for _ in 0..2 {
            same(&function(&idempotency, id.clone(), value.clone()).await.expect("a value"), value);
        }
        in_steps(&idempotency, id.clone(), value.clone(), false, true).await.expect_err("fails after the part");
        for _ in 0..2 {
            let resumed = in_steps(&idempotency, id.clone(), value.clone(), false, false).await;
            same(&resumed.expect("a value"), value);
        }
    }
    assert_eq!(entries(&pool).await, 2 * i64::try_from(values.len()).expect("a number"));
}
