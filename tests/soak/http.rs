//! One request over one connection to a Unix socket. Dropping the future hangs up.

use std::io;
use std::path::Path;

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) async fn post(socket: &Path, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> io::Result<Answer> {
    let mut request = Request::post(path).header("host", "soak").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).map_err(io::Error::other)?;
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // What was read before the connection ended may be the whole answer.
        _ = connection => exchange.await,
    }
}
