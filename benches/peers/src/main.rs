//! The other systems, beside us: throughput in alternating slices, and what they do when things go wrong.
//!
//! `peers <quick|full> <url>…`, with one database a system. The last line is a JSON object with one object a system.
//! `peers relay <quick|full> <url>` measures a job queue instead.

mod orders;
mod probes;
mod relay;
mod systems;

use std::time::Duration;

use idem_benches::Result;
use idem_benches::commands::peers::SYSTEMS;
use idem_benches::deliveries::Size;
use idem_benches::load::throughput;
use idem_benches::measure::alternate;
use idem_benches::progress::Progress;
use serde_json::{Map, Value, json};

use systems::System;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["crash", system, url] => crash(system, url).await,
        ["relay", size, url] => relay::measure(Size::of(size == "quick"), url).await,
        ["quick", ref urls @ ..] => measure(urls, 1, Duration::from_millis(100)).await,
        ["full", ref urls @ ..] => measure(urls, 9, Duration::from_millis(700)).await,
        _ => Err("usage: peers <quick|full> <url>…, with one database a system".into()),
    }
}

/// Runs a handler that takes its process with it.
async fn crash(system: &str, url: &str) -> Result<()> {
    let system = System::start(system, url, true).await?;
    system.send("/crash", "crash").await;
    Err("the handler must have ended this process".into())
}

async fn measure(urls: &[&str], rounds: usize, slice: Duration) -> Result<()> {
    if urls.len() != SYSTEMS.len() {
        return Err(format!("one database must be given for each of {SYSTEMS:?}").into());
    }
    let mut systems = Vec::new();
    for (name, url) in SYSTEMS.into_iter().zip(urls) {
        systems.push(System::start(name, url, false).await.map_err(|error| format!("{name}: {error}"))?);
    }
    let fresh = fresh(&systems, rounds, slice).await?;
    let replay = replay(&systems, rounds, slice).await?;
    let mut objects = Map::new();
    for (place, system) in systems.iter().enumerate() {
        println!("{}: duplicates, a crash, a hang-up", system.name);
        let mut object = json!({ "fresh": fresh[place].round(), "replay": replay[place].round() });
        merge(&mut object, probes::concurrent(system).await?);
        merge(&mut object, probes::crashed(system, urls[place]).await?);
        merge(&mut object, probes::hung_up(system).await?);
        objects.insert(system.name.to_owned(), object);
    }
    println!("{}", Value::Object(objects));
    Ok(())
}

fn merge(object: &mut Value, other: Value) {
    if let (Some(object), Value::Object(other)) = (object.as_object_mut(), other) {
        object.extend(other);
    }
}

/// Requests a second with keys that nobody used: the medians, in the order of the systems.
async fn fresh(systems: &[System], rounds: usize, slice: Duration) -> Result<Vec<f64>> {
    println!("fresh keys");
    let series: [_; SYSTEMS.len()] = alternate(rounds, &Progress::of("fresh"), async |place: usize| {
        let system = systems[place].clone();
        Ok(throughput(&systems[place].router, slice, move || system.request("/orders", &unused())).await?.rate)
    })
    .await?;
    Ok(series.iter().map(idem_benches::measure::Series::median).collect())
}

/// Requests a second with keys whose operations have completed.
async fn replay(systems: &[System], rounds: usize, slice: Duration) -> Result<Vec<f64>> {
    println!("replays");
    let keys: Vec<_> = (0..1_000).map(|_| unused()).collect();
    for system in systems {
        for key in &keys {
            let (status, _) = system.send("/orders", key).await;
            if !status.is_success() {
                return Err(format!("{}: {status} for a fresh key", system.name).into());
            }
        }
        let before = system.orders().await?;
        let (status, _) = system.send("/orders", &keys[0]).await;
        if !status.is_success() || system.orders().await? != before {
            return Err(format!("{}: {status} for a replay", system.name).into());
        }
    }
    let series: [_; SYSTEMS.len()] = alternate(rounds, &Progress::of("replay"), async |place: usize| {
        let (system, keys) = (systems[place].clone(), keys.clone());
        let any = move || keys[uuid::Uuid::new_v4().as_u128() as usize % keys.len()].clone();
        Ok(throughput(&systems[place].router, slice, move || system.request("/orders", &any())).await?.rate)
    })
    .await?;
    Ok(series.iter().map(idem_benches::measure::Series::median).collect())
}

fn unused() -> String {
    uuid::Uuid::new_v4().to_string()
}
