//! The rest of the world: a payment provider and a mail service, each a process of its own. What really happened is counted
//! here, by key, where no bug of the service can hide it.

mod hold;
mod ledger;
mod mail_service;
mod payment_provider;

use axum::Router;
use tokio::net::TcpListener;

pub(crate) use hold::{Awaited, Place};
pub(crate) use ledger::Line;

/// The names of the processes.
pub(crate) const PROVIDER: &str = "provider";
pub(crate) const MAIL: &str = "mail";

/// The routes of one of them.
pub(crate) fn router(name: &str) -> Option<Router> {
    match name {
        PROVIDER => Some(payment_provider::router()),
        MAIL => Some(mail_service::router()),
        _ => None,
    }
}

pub(crate) async fn serve(
    name: &str,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), idem_examples::Error> {
    let router = router(name).ok_or_else(|| format!("`{name}` is no process of this example"))?;
    // A call that is held must not keep the process alive.
    tokio::select! {
        served = axum::serve(listener, router).into_future() => served?,
        () = stop => {}
    }
    Ok(())
}
