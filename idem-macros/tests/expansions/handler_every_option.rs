#[idempotent(
    scope = (tenant.id, tenant.region),
    ttl = "24h",
    key = event.id,
    in_flight = "wait 2s",
    failures = "replay",
    lease = "90s",
    isolation = "serializable",
    fingerprint = (event.kind, event.id),
    state = AppState,
    allow(pool),
    crate = once,
)]
async fn on_event(
    tenant: Tenant,
    State(pool): State<PgPool>,
    tx: &mut Tx,
    Json(event): Json<Event>,
) -> StatusCode {
    save(tx).await
}
