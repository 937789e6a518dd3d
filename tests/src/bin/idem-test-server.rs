//! A server process to kill: serves the tests' application over `DATABASE_URL` and prints its address.

use idem_runtime::Idempotency;
use idem_tests::App;
use sqlx::PgPool;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let app = App::over(pool.clone(), Idempotency::new(pool));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    axum::serve(listener, app.router).await?;
    Ok(())
}
