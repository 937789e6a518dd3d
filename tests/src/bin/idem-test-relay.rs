//! A relay process to die: delivers what is in the outbox of `DATABASE_URL`, and does what each message says.
//!
//! It writes a row into `deliveries` when a delivery begins and completes it when the delivery ends, on connections that the relay
//! does not use.

use std::time::Duration;

use idem_runtime::{Idempotency, Message};
use sqlx::PgPool;

async fn deliver(pool: PgPool, message: Message) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let begin = "INSERT INTO deliveries (process, topic, name, attempt) VALUES ($1, $2, $3, $4) RETURNING id";
    let id: i64 = sqlx::query_scalar(begin)
        .bind(i64::from(std::process::id()))
        .bind(message.topic())
        .bind(message.dedupe_key())
        .bind(message.attempt())
        .fetch_one(&pool)
        .await?;
    let what: String = message.payload()?;
    match what.split_once(' ').unwrap_or((&what, "")) {
        ("abort", "") => std::process::abort(),
        ("abort", pause) => {
            tokio::time::sleep(Duration::from_millis(pause.parse()?)).await;
            std::process::abort()
        }
        ("exit", "") => std::process::exit(0),
        ("sleep", pause) => tokio::time::sleep(Duration::from_millis(pause.parse()?)).await,
        _ => {}
    }
    let end = "UPDATE deliveries SET ended_at = clock_timestamp() WHERE id = $1";
    sqlx::query(end).bind(id).execute(&pool).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let receivers = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let builder = Idempotency::builder(pool).relay_lease(Duration::from_secs(2)).delivery_attempts(3);
    let relay = builder.build()?.relay().on_any(move |message| deliver(receivers.clone(), message)).start()?;
    println!("started");
    std::future::pending::<()>().await;
    relay.stop().await;
    Ok(())
}
