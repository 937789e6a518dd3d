//! A test's database is its own and goes with it.

use idem_testing::{Postgres, TestDatabase};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};

async fn exists(postgres: &Postgres, name: &str) -> bool {
    let mut connection = PgConnection::connect(&postgres.url("postgres")).await.unwrap();
    let select = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
    sqlx::query_scalar(select).bind(name).fetch_one(&mut connection).await.unwrap()
}

#[tokio::test]
async fn databases_do_not_see_each_other() {
    let first = TestDatabase::create().await.unwrap();
    let second = TestDatabase::create().await.unwrap();
    for database in [&first, &second] {
        sqlx::query("CREATE TABLE orders (id bigint)").execute(&database.pool()).await.unwrap();
    }
    sqlx::query("INSERT INTO orders VALUES (1)").execute(&first.pool()).await.unwrap();
    let count = "SELECT count(*) FROM orders";
    assert_eq!(sqlx::query_scalar::<_, i64>(count).fetch_one(&second.pool()).await.unwrap(), 0);
}

#[tokio::test]
async fn a_database_goes_when_its_test_ends_while_pools_are_open() {
    let database = TestDatabase::create().await.unwrap();
    let (name, postgres) = (database.name().to_owned(), database.postgres().clone());
    let pool = database.pool_with(PgPoolOptions::new().max_connections(2));
    let _busy = pool.begin().await.unwrap();
    assert!(exists(&postgres, &name).await);
    drop(database);
    assert!(!exists(&postgres, &name).await);
}

#[tokio::test]
async fn a_database_goes_when_its_test_panics() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let test = tokio::spawn(async move {
        let database = TestDatabase::create().await.unwrap();
        sender.send((database.name().to_owned(), database.postgres().clone())).unwrap();
        panic!("this panic is meant to happen");
    });
    assert!(test.await.unwrap_err().is_panic());
    let (name, postgres) = receiver.recv().unwrap();
    assert!(!exists(&postgres, &name).await);
}

#[tokio::test]
async fn a_copy_has_the_rows_of_its_template() {
    let template = TestDatabase::create().await.unwrap();
    let mut connection = PgConnection::connect(&template.url()).await.unwrap();
    sqlx::query("CREATE TABLE orders AS SELECT 7::bigint AS id").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let copy = TestDatabase::copy_on(template.postgres(), template.name()).await.unwrap();
    let id: i64 = sqlx::query_scalar("SELECT id FROM orders").fetch_one(&copy.pool()).await.unwrap();
    assert_eq!(id, 7);
}
