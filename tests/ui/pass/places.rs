//! In modules, in functions, in macros and beside other things of the same name.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

mod orders {
    use super::application::{StatusCode, Tenant, Tx, idempotent};

    #[idempotent(scope = tenant.id, ttl = "24h")]
    pub async fn create(tenant: Tenant, tx: &mut Tx) -> StatusCode {
        super::write(tenant, tx).await
    }

    pub mod lines {
        #[super::idempotent(scope = tenant.id, ttl = "24h")]
        pub(in crate::orders) async fn create(tenant: super::Tenant, tx: &mut super::Tx) -> super::StatusCode {
            super::super::write(tenant, tx).await
        }

        #[idem_runtime::idempotent(scope = tenant.id, ttl = "24h")]
        pub(crate) async fn remove(tenant: super::Tenant, tx: &mut idem_runtime::Tx) -> super::StatusCode {
            super::super::write(tenant, tx).await
        }
    }

    pub fn inner() -> super::MethodRouter<super::AppState> {
        super::post(lines::create)
    }
}

struct Orders;

impl Orders {
    #[idempotent(scope = tenant.id, ttl = "24h")]
    async fn create(tenant: Tenant, tx: &mut Tx) -> StatusCode {
        write(tenant, tx).await
    }
}

macro_rules! handler {
    ($name:ident, $tenant:ident, $tx:ident) => {
        #[idempotent(scope = $tenant.id, ttl = "24h")]
        async fn $name($tenant: Tenant, $tx: &mut Tx) -> StatusCode {
            write($tenant, $tx).await
        }
    };
    ($name:ident) => {
        #[idempotent(scope = tenant.id, ttl = "24h")]
        async fn $name(tenant: Tenant, tx: &mut Tx) -> StatusCode {
            write(tenant, tx).await
        }
    };
}

handler!(from_names_outside, tenant, tx);
handler!(from_names_inside);

/// Everything that the expansion calls something.
#[idempotent(scope = (call.id, arg0.id, key.id), ttl = "24h", key = (digest.name), fingerprint = (scope.name))]
async fn scope(
    call: Tenant,
    arg0: Tenant,
    arg1: Tenant,
    digest: Tenant,
    scope: Tenant,
    key: Tenant,
    op: &mut Tx,
) -> StatusCode {
    drop((arg0, arg1, digest, scope, key));
    write(call, op).await
}

#[idempotent(scope = r#type.id, ttl = "24h")]
async fn r#async(r#type: Tenant, r#mut: &mut Tx) -> StatusCode {
    write(r#type, r#mut).await
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn bounded(tenant: Tenant, tx: &mut Tx) -> StatusCode
where
    Tenant: Send,
    i64: idem_runtime::Scope,
{
    write(tenant, tx).await
}

async fn write(tenant: Tenant, tx: &mut Tx) -> StatusCode {
    let written = sqlx::query("SELECT 1").bind(tenant.id).execute(&mut *tx).await;
    if written.is_ok() { StatusCode::CREATED } else { StatusCode::INTERNAL_SERVER_ERROR }
}

fn main() {
    #[idempotent(scope = tenant.id, ttl = "24h")]
    async fn local(tenant: Tenant, tx: &mut Tx) -> StatusCode {
        write(tenant, tx).await
    }

    for handler in [
        post(orders::create),
        post(orders::lines::remove),
        orders::inner(),
        post(Orders::create),
        post(from_names_outside),
        post(from_names_inside),
        post(scope),
        post(r#async),
        post(bounded),
        post(local),
    ] {
        routed(handler);
    }
}
