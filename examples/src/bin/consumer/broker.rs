//! Redis, started for this example and gone with it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use idem_examples::Error;
use tokio::net::{TcpListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// The process's name.
pub(crate) const REDIS: &str = "redis";

/// Its standard input ends with the process that started it, SIGKILL included.
const SUPERVISOR: &str = r#"
directory=$1
redis-server --port 0 --unixsocket "$directory/redis.sock" --dir "$directory" --save '' --appendonly no >"$directory/log" &
server=$!
cat >/dev/null
kill "$server"
wait "$server"
rm -rf "$directory"
"#;

/// # Errors
/// If there is no Redis on this machine; the message says how to install it.
pub(crate) fn check_installed() -> Result<(), Error> {
    let version = std::process::Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    if version.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    let install = if cfg!(target_os = "macos") { "brew install redis" } else { "apt-get install redis-server" };
    Err(format!("no `redis-server` on this machine; install it (`{install}`)").into())
}

/// Runs Redis behind `listener` until `stop` ends.
pub(crate) async fn serve(listener: TcpListener, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let directory = std::env::temp_dir().join(format!("idem-redis-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let mut supervisor = start(&directory)?;
    let socket = directory.join("redis.sock");
    let forwarded = async {
        wait_for(&socket).await?;
        loop {
            let (mut client, _) = listener.accept().await?;
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut server = UnixStream::connect(socket).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    };
    let outcome: Result<(), Error> = tokio::select! {
        forwarded = forwarded => forwarded,
        () = stop => Ok(()),
    };
    drop(supervisor.stdin.take());
    supervisor.wait().await?;
    outcome
}

/// In a process group of its own: an interrupt at the terminal is the tour's to handle.
fn start(directory: &Path) -> std::io::Result<Child> {
    let mut supervisor = Command::new("sh");
    supervisor.args(["-c", SUPERVISOR, "redis"]).arg(directory).process_group(0);
    supervisor.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

async fn wait_for(socket: &PathBuf) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while UnixStream::connect(socket).await.is_err() {
        if Instant::now() > deadline {
            return Err("Redis did not start within 30 seconds".into());
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
