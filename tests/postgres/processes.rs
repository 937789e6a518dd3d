//! The process dies: nothing is left behind, and another one runs the retry at once.

use std::process::Stdio;
use std::time::Duration;

use idem_testing::TestDatabase;
use idem_tests::{App, Then, entry};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

struct Server {
    process: Child,
    address: String,
}

async fn serve(database: &TestDatabase) -> Server {
    let mut process = Command::new(env!("CARGO_BIN_EXE_idem-test-server"))
        .env("DATABASE_URL", database.url())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a server process");
    let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
    let address = lines.next_line().await.expect("its output").expect("its address");
    Server { process, address }
}

async fn send(server: &Server, key: &str, then: Then) -> TcpStream {
    let body = serde_json::to_string(&entry("killed", then)).expect("JSON");
    let head = format!(
        "POST /entries HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntenant: a\r\nidempotency-key: {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(&server.address).await.expect("a connection");
    stream.write_all((head + &body).as_bytes()).await.expect("sent");
    stream
}

async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn a_process_killed_mid_handler_leaves_nothing_and_the_retry_runs_at_once_1() {
    let (database, app) = App::start().await;
    let mut first = serve(&database).await;
    let second = serve(&database).await;
    let cut = send(&first, "k", Then::Sleep(60_000)).await;
    let in_transaction =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";
    while sqlx::query_scalar::<_, i64>(in_transaction).fetch_one(&app.pool).await.expect("a count") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let busy = answer(send(&second, "k", Then::Sleep(60_000)).await).await;
    assert!(busy.starts_with("HTTP/1.1 409"), "{busy}");
    first.process.kill().await.expect("killed");
    assert_eq!(answer(cut).await, "", "the client got no answer");
    // The kernel closes the dead process's socket, and Postgres rolls back: well within a second.
    while sqlx::query_scalar::<_, i64>(in_transaction).fetch_one(&app.pool).await.expect("a count") > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((app.entries().await, app.stored().await), (0, 0));
    let retried = answer(send(&second, "k", Then::Created).await).await;
    assert!(retried.starts_with("HTTP/1.1 201"), "another process runs the retry: {retried}");
    assert_eq!((app.entries().await, app.stored().await), (1, 1));
}
