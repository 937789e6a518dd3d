//! Each system, wired as its documentation says.

mod axum_idempotent;
mod cratestack;
mod idem;
mod rustango;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use idem_benches::Result;
use idem_benches::load::answer;
use peers_sqlx::PgPool;
use peers_sqlx::postgres::PgPoolOptions;

/// An application behind one of the systems.
#[derive(Clone)]
pub(crate) struct System {
    pub(crate) name: &'static str,
    pub(crate) router: Router,
    /// What the system wants to see in every request.
    headers: Arc<[(&'static str, String)]>,
    pool: PgPool,
}

impl System {
    /// Starts a system over a database that holds the table of orders.
    pub(crate) async fn start(name: &str, url: &str, crashing: bool) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(idem_benches::stage::CONNECTIONS).connect_lazy(url)?;
        let routes = crate::orders::routes(pool.clone(), crashing);
        let none = Vec::new();
        let (name, router, headers) = match name {
            "idem" => ("idem", idem::wrap(url, crashing)?, none),
            "axum-idempotent" => {
                let (router, headers) = axum_idempotent::wrap(routes, pool.clone()).await?;
                ("axum-idempotent", router, headers)
            }
            "cratestack" => {
                ("cratestack", cratestack::wrap(routes, pool.clone()).await?, vec![("authorization", "Bearer a".to_owned())])
            }
            "rustango" => ("rustango", rustango::wrap(routes, pool.clone()).await?, none),
            other => return Err(format!("`{other}` is not a system").into()),
        };
        Ok(Self { name, router, headers: headers.into(), pool })
    }

    /// An order under a key.
    pub(crate) fn request(&self, path: &str, key: &str) -> Request<Body> {
        let mut request = idem_benches::application::order(path, key);
        for (name, value) in self.headers.iter() {
            request.headers_mut().insert(*name, value.parse().expect("a header value"));
        }
        request
    }

    pub(crate) async fn send(&self, path: &str, key: &str) -> (StatusCode, Vec<u8>) {
        answer(&self.router, self.request(path, key)).await
    }

    /// How many orders there are: what counts in the end.
    pub(crate) async fn orders(&self) -> Result<i64> {
        Ok(peers_sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&self.pool).await?)
    }
}
