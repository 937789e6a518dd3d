#[idempotent(scope = global, ttl = "1 week")]
async fn tick(tx: &mut Tx) {
    sqlx::query("UPDATE clock SET ticks = ticks + 1").execute(&mut *tx).await.unwrap();
}
