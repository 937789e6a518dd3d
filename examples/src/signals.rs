//! When to stop.

use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

/// Waits for an interrupt (Ctrl-C) or a request to terminate, and returns the exit code that goes with it.
pub(crate) async fn interrupted() -> u8 {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    }
}

/// Waits for the end of the standard input: the tour holds its other side, and the kernel closes it if the tour dies.
pub(crate) async fn end_of_input() {
    let mut ignored = [0; 64];
    let mut input = tokio::io::stdin();
    while matches!(input.read(&mut ignored).await, Ok(length) if length > 0) {}
}
