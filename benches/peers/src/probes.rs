//! What a system does with duplicates, after a crash and after a hang-up, judged by the orders that are there afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_benches::Result;
use idem_benches::load::answer;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::orders::SLOW;
use crate::systems::System;

const DUPLICATES: usize = 20;

/// What a client waits before it tries again, where it is not told.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Duplicates of one key at once.
pub(crate) async fn concurrent(system: &System) -> Result<Value> {
    let before = system.orders().await?;
    let mut clients = JoinSet::new();
    for _ in 0..DUPLICATES {
        let (router, request) = (system.router.clone(), system.request("/slow", "concurrent"));
        clients.spawn(async move { answer(&router, request).await.0.as_u16() });
    }
    let mut statuses = BTreeMap::new();
    for status in clients.join_all().await {
        *statuses.entry(status.to_string()).or_insert(0) += 1;
    }
    let executions = system.orders().await? - before;
    Ok(json!({ "concurrent_executions": executions, "concurrent_statuses": statuses, "ran_once": executions == 1 }))
}

/// The process ends in the middle of a handler, after the write; the client tries again a second later.
pub(crate) async fn crashed(system: &System, url: &str) -> Result<Value> {
    let before = system.orders().await?;
    let mut crashing = Command::new(std::env::current_exe()?);
    let ended = crashing.args(["crash", system.name, url]).kill_on_drop(true).output().await?;
    if ended.status.code().is_some() {
        return Err(format!("{}: the process must have crashed: {:?}", system.name, ended).into());
    }
    tokio::time::sleep(RETRY_AFTER).await;
    let (status, _) = system.send("/crash", "crash").await;
    let orders = system.orders().await? - before;
    let locked = !status.is_success();
    Ok(json!({ "after_crash": outcome(status.as_u16(), orders), "crash_orders": orders, "crash_locks_key": locked }))
}

/// The client hangs up while the handler runs, and tries again: at once, and when the handler must be done.
pub(crate) async fn hung_up(system: &System) -> Result<Value> {
    let before = system.orders().await?;
    let hung_up = tokio::time::timeout(SLOW / 2, system.send("/slow", "hung-up")).await;
    if hung_up.is_ok() {
        return Err(format!("{}: the handler must still have been running", system.name).into());
    }
    let at_once = system.send("/slow", "hung-up").await.0;
    tokio::time::sleep(SLOW * 3).await;
    let status = if at_once.is_success() { at_once } else { system.send("/slow", "hung-up").await.0 };
    let orders = system.orders().await? - before;
    Ok(json!({
        "after_disconnect": outcome(status.as_u16(), orders),
        "disconnect_orders": orders,
        "disconnect_runs_twice": orders > 1,
    }))
}

fn outcome(status: u16, orders: i64) -> String {
    format!("{status}, {orders} order{}", if orders == 1 { "" } else { "s" })
}
