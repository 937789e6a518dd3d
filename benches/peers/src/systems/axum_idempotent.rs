//! axum-idempotent keeps responses in the session, here in ruts' Postgres store.

use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use idem_benches::Result;
use peers_sqlx::PgPool;
use ruts::store::Ttl;
use ruts::store::postgres::{PostgresStore, PostgresStoreBuilder};
use ruts::{CookieOptions, Session, SessionLayer};

const SESSION_SECONDS: i64 = 86_400;

async fn log_in(session: Session<PostgresStore>) -> &'static str {
    let ttl = Ttl::new(SESSION_SECONDS).expect("a positive time");
    match session.set("user", &"a".to_owned(), ttl, None).await {
        Ok(_) => "in",
        Err(_) => "out",
    }
}

/// The key counts within the session, so each request needs the session's cookie.
pub(super) async fn wrap(routes: Router, pool: PgPool) -> Result<(Router, Vec<(&'static str, String)>)> {
    let store = Arc::new(PostgresStoreBuilder::new(pool).create_table(true).build().await?);
    let options = IdempotentOptions::default().use_idempotency_key_header(None, true);
    let cookie = CookieOptions::build().name("session").max_age(SESSION_SECONDS.cast_unsigned()).path("/");
    let router = routes
        .route("/login", post(log_in))
        .layer(IdempotentLayer::<PostgresStore>::new(options))
        .layer(SessionLayer::new(store).with_cookie_options(cookie))
        .layer(tower_cookies::CookieManagerLayer::new());
    let request = idem_benches::application::order("/login", "login");
    let response = tower::ServiceExt::oneshot(router.clone(), request).await.unwrap_or_else(|error| match error {});
    let cookie = response.headers().get("set-cookie").and_then(|cookie| cookie.to_str().ok()).map(str::to_owned);
    let cookie = cookie.and_then(|cookie| cookie.split(';').next().map(str::to_owned));
    Ok((router, vec![("cookie", cookie.ok_or("the session must set a cookie")?)]))
}
