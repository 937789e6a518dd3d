//! What goes wrong, when and to whom.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idem_testing::{Postgres, Shutdown};
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::Failure;
use crate::arguments::Arguments;
use crate::fleet::{Between, Fleet, clock_offset};
use crate::wire::Blow;

/// How often each fault happened.
pub(crate) type Faults = BTreeMap<&'static str, u64>;

/// Makes things go wrong until it is told to stop, and puts them right again.
pub(crate) fn start(
    arguments: &Arguments,
    fleet: &Arc<Fleet>,
    postgres: &Postgres,
    stopped: &watch::Receiver<bool>,
) -> JoinHandle<Faults> {
    let random = fastrand::Rng::with_seed(arguments.seed ^ 0xfa);
    let (fleet, postgres, mut stopped) = (Arc::clone(fleet), postgres.clone(), stopped.clone());
    let mean = arguments.pause.as_secs_f64();
    tokio::spawn(async move {
        let mut misfortune =
            Misfortune { random, fleet, postgres, restarting: Arc::default(), under_way: JoinSet::new() };
        let mut faults = Faults::new();
        loop {
            // Exponential: faults come in bursts, as they do.
            let pause = Duration::from_secs_f64(-mean * (1.0 - misfortune.random.f64()).ln());
            if timeout(pause, stopped.wait_for(|stopped| *stopped)).await.is_ok() {
                break;
            }
            if let Some(fault) = misfortune.strike() {
                *faults.entry(fault).or_default() += 1;
            }
        }
        while let Some(ended) = misfortune.under_way.join_next().await {
            ended.expect("no panic").expect("what was broken can be mended");
        }
        faults
    })
}

struct Misfortune {
    random: fastrand::Rng,
    fleet: Arc<Fleet>,
    postgres: Postgres,
    restarting: Arc<Mutex<()>>,
    /// Those that take a while.
    under_way: JoinSet<Result<(), Failure>>,
}

impl Misfortune {
    /// One fault; `None` if the one chosen cannot happen just now.
    fn strike(&mut self) -> Option<&'static str> {
        let server = self.random.usize(..self.fleet.len());
        match self.random.u8(..100) {
            0..20 => self.kill(server),
            20..40 => self.freeze(server),
            40..46 => self.restart("Postgres restarted, fast", Shutdown::Fast),
            46..52 => self.restart("Postgres restarted, immediate", Shutdown::Immediate),
            52..60 => Some(self.cut(server, Between::ClientsAndServer)),
            60..90 => Some(self.cut(server, Between::ServerAndPostgres)),
            _ => Some(self.cut(server, Between::ServerAndProvider)),
        }
    }

    fn kill(&mut self, server: usize) -> Option<&'static str> {
        let pause = Duration::from_millis(self.random.u64(..500));
        let clock = clock_offset(&mut self.random);
        let seized = self.fleet.seize(server)?;
        self.under_way.spawn(seized.kill(pause, clock));
        Some("server killed (SIGKILL)")
    }

    /// Often for longer than a lease.
    fn freeze(&mut self, server: usize) -> Option<&'static str> {
        let length = Duration::from_millis(self.random.u64(50..4_500));
        let seized = self.fleet.seize(server)?;
        self.under_way.spawn(seized.freeze(length));
        Some("server frozen (SIGSTOP, SIGCONT)")
    }

    fn restart(&mut self, name: &'static str, shutdown: Shutdown) -> Option<&'static str> {
        let restarting = Arc::clone(&self.restarting).try_lock_owned().ok()?;
        let postgres = self.postgres.clone();
        self.under_way.spawn_blocking(move || {
            postgres.restart(shutdown)?;
            drop(restarting);
            Ok(())
        });
        Some(name)
    }

    fn cut(&mut self, server: usize, between: Between) -> &'static str {
        let blow = [Blow::Cut, Blow::LoseRequest, Blow::LoseAnswer][self.random.usize(..3)];
        self.fleet.strike(server, between, blow);
        match (between, blow) {
            (Between::ClientsAndServer, Blow::Cut) => "clients and server: cut",
            (Between::ClientsAndServer, Blow::LoseRequest) => "clients and server: request lost",
            (Between::ClientsAndServer, Blow::LoseAnswer) => "clients and server: answer lost",
            (Between::ServerAndPostgres, Blow::Cut) => "server and Postgres: cut",
            (Between::ServerAndPostgres, Blow::LoseRequest) => "server and Postgres: statement lost",
            (Between::ServerAndPostgres, Blow::LoseAnswer) => "server and Postgres: answer lost",
            (Between::ServerAndProvider, Blow::Cut) => "server and provider: cut",
            (Between::ServerAndProvider, Blow::LoseRequest) => "server and provider: call lost",
            (Between::ServerAndProvider, Blow::LoseAnswer) => "server and provider: answer lost",
        }
    }
}
