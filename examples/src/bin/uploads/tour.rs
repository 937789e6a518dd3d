//! What uploads over a flaky connection do to the database.

use std::time::Duration;

use idem_examples::{Error, Request, Server, Stage, get, post};
use idem_testing::TestDatabase;
use sha2::{Digest, Sha256};
use sqlx::PgPool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::service::LARGEST;

pub(crate) async fn tour(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
    let pool = database.pool();
    let server = Server::start(&database.url()).await?;
    println!("service on http://{} (process {})", server.address(), server.process_id());
    uploaded_and_retried(stage, &server, &pool).await?;
    cut_off(stage, &server, &pool).await?;
    too_large(stage, &server, &pool).await?;
    let stopped = server.stop().await?;
    stage.promise("the server ended orderly", stopped.success(), true);
    pool.close().await;
    Ok(())
}

async fn uploaded_and_retried(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    stage
        .scene("An upload", "A picture of 200,000 bytes that are no text, between boundaries that the client made up.");
    let picture = picture(200_000);
    let first = stage.send(server, &upload("photo-1", "first-boundary", &picture)).await?;
    let tables = Tables::show(stage, pool).await?;
    stage.promise("stored", (first.status.as_u16(), first.is_replay()), (201, false));
    stage.promise("one document", tables, Tables { documents: 1, bytes: 200_000, stored: 1 });
    let digest = hex::encode(Sha256::digest(&picture));
    stage.promise("with the digest of what was sent", first.field("sha256"), digest.clone().into());
    let kept: String =
        sqlx::query_scalar("SELECT encode(sha256(content), 'hex') FROM documents").fetch_one(pool).await?;
    stage.promise("which is the digest of what is kept", kept, digest);

    stage.scene(
        "Retried",
        "The answer got lost. The client builds the form again, with another boundary: the same upload in other bytes.",
    );
    let retry = stage.send(server, &upload("photo-1", "another-boundary-altogether", &picture)).await?;
    let after = Tables::show(stage, pool).await?;
    stage.promise("the first answer again, byte for byte", retry.replays(&first), true);
    stage.promise("with its entity tag", retry.header("etag"), first.header("etag"));
    stage.promise("still one document", after, tables);

    stage.scene("Another picture under the same key", "One bit of it differs.");
    let mut other = picture.clone();
    other[100_000] ^= 1;
    let mismatch = stage.send(server, &upload("photo-1", "first-boundary", &other)).await?;
    let reply = (mismatch.status.as_u16(), mismatch.problem());
    stage.promise("refused as a key that was used before", reply, (422, "key-reused".to_owned()));
    stage.promise("nothing changed", Tables::read(pool).await?, tables);
    let request = get("/documents/1").header("Authorization", "Bearer ada-token");
    let downloaded = stage.client.send(server.address(), &request).await?;
    stage.promise("the first picture comes back bit for bit", downloaded.body == picture, true);
    Ok(())
}

async fn cut_off(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Tables::read(pool).await?;
    stage.scene(
        "An upload that breaks off",
        "The connection is gone after half of the picture. The client retries the whole.",
    );
    let picture = picture(300_000);
    let request = upload("photo-2", "first-boundary", &picture);
    stage.show_request(&request);
    send_half(server, &request).await?;
    stage.say("The connection was closed half-way.");
    let after = Tables::show(stage, pool).await?;
    let retry = stage.send(server, &upload("photo-2", "second-boundary", &picture)).await?;
    let tables = Tables::show(stage, pool).await?;
    stage.promise("half an upload leaves nothing", after, before);
    stage.promise("the retry ran", (retry.status.as_u16(), retry.is_replay()), (201, false));
    let expected = Tables { documents: before.documents + 1, bytes: before.bytes + 300_000, stored: before.stored + 1 };
    stage.promise("one document more", tables, expected);
    Ok(())
}

async fn too_large(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Tables::read(pool).await?;
    stage.scene(
        "An upload that is too large",
        "It is refused while it is read, so its key stays free for a smaller one.",
    );
    let large = stage.send(server, &upload("photo-3", "first-boundary", &picture(LARGEST))).await?;
    let after = Tables::read(pool).await?;
    let small = stage.send(server, &upload("photo-3", "first-boundary", &picture(1_000))).await?;
    let tables = Tables::show(stage, pool).await?;
    stage.promise("too large", large.status.as_u16(), 413);
    stage.promise("it left nothing", after, before);
    stage.promise(
        "the smaller one is stored under the same key",
        (small.status.as_u16(), small.is_replay()),
        (201, false),
    );
    let expected = Tables { documents: before.documents + 1, bytes: before.bytes + 1_000, stored: before.stored + 1 };
    stage.promise("one document more", tables, expected);
    Ok(())
}

/// Bytes of every kind, always the same.
fn picture(length: usize) -> Vec<u8> {
    (0..length).map(|position| (position.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn upload(key: &str, boundary: &str, content: &[u8]) -> Request {
    let mut body = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nholiday\r\n\
         --{boundary}\r\nContent-Disposition: form-data; name=\"content\"; filename=\"holiday.raw\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    )
    .into_bytes();
    body.extend_from_slice(content);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    let content_type = format!("multipart/form-data; boundary={boundary}");
    post("/documents").header("Authorization", "Bearer ada-token").key(key).body(content_type, body)
}

/// Sends a request up to the middle of its body, hangs up, and waits until the server has noticed.
async fn send_half(server: &Server, request: &Request) -> Result<(), Error> {
    let mut connection = TcpStream::connect(server.address()).await?;
    let whole = request.to_bytes();
    connection.write_all(&whole[..whole.len() / 2]).await?;
    connection.shutdown().await?;
    // The server closes its side once it has given up on the rest.
    timeout(Duration::from_secs(30), connection.read_to_end(&mut Vec::new())).await??;
    Ok(())
}

/// What the tables say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
struct Tables {
    documents: i64,
    bytes: i64,
    stored: i64,
}

impl Tables {
    async fn read(pool: &PgPool) -> Result<Self, sqlx::Error> {
        sqlx::query_as(
            "SELECT count(*) AS documents,
                    coalesce(sum(octet_length(content)), 0)::bigint AS bytes,
                    (SELECT count(*) FROM idem.idempotency_keys) AS stored
             FROM documents",
        )
        .fetch_one(pool)
        .await
    }

    async fn show(stage: &mut Stage, pool: &PgPool) -> Result<Self, sqlx::Error> {
        let tables = Self::read(pool).await?;
        stage.show_facts(&vec![
            ("documents", tables.documents.to_string()),
            ("bytes in them", tables.bytes.to_string()),
            ("stored responses", tables.stored.to_string()),
        ]);
        Ok(tables)
    }
}
