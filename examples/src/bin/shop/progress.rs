//! A progress bar: one line that is drawn again on a terminal, a line for each tenth elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::network::FlakyNetwork;

pub(crate) struct Bar {
    shared: Arc<Shared>,
    drawing: tokio::task::JoinHandle<()>,
}

struct Shared {
    name: String,
    wanted: u32,
    done: AtomicU32,
    network: Arc<FlakyNetwork>,
    started: Instant,
}

const WIDTH: u32 = 30;

impl Bar {
    pub(crate) fn start(name: &str, wanted: u32, network: Arc<FlakyNetwork>) -> Self {
        let (name, done, started) = (name.to_owned(), AtomicU32::new(0), Instant::now());
        let shared = Arc::new(Shared { name, wanted, done, network, started });
        let drawn = Arc::clone(&shared);
        let terminal = std::io::stdout().is_terminal();
        let drawing = tokio::spawn(async move {
            let mut tenth = 0;
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let now = drawn.done.load(Ordering::Relaxed) * 10 / drawn.wanted.max(1);
                if terminal {
                    print!("\r{}\x1b[K", drawn.line());
                    let _ = std::io::stdout().flush();
                } else if now > tenth {
                    tenth = now;
                    println!("{}", drawn.line());
                }
            }
        });
        Self { shared, drawing }
    }

    pub(crate) fn one_done(&self) {
        self.shared.done.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn finish(&self) {
        self.drawing.abort();
        let start = if std::io::stdout().is_terminal() { "\r" } else { "" };
        let end = if std::io::stdout().is_terminal() { "\x1b[K" } else { "" };
        println!("{start}{} in {:.1} s{end}", self.shared.line(), self.shared.started.elapsed().as_secs_f64());
    }
}

impl Shared {
    fn line(&self) -> String {
        let done = self.done.load(Ordering::Relaxed).min(self.wanted);
        let full = done * WIDTH / self.wanted.max(1);
        let bar: String = (0..WIDTH).map(|column| if column < full { '█' } else { '░' }).collect();
        let counts = self.network.counts();
        format!(
            "{:<13} {bar} {done:>5}/{} orders answered, {:>5} requests, {:>5} answers lost",
            self.name, self.wanted, counts.sent, counts.answers_lost
        )
    }
}
