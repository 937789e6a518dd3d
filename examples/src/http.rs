//! The tours' HTTP client: what it sends can be printed, and what it gets is kept to the byte.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde_json::Value;

/// A request that can be sent many times.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
}

/// A GET request.
pub fn get(path: impl Into<String>) -> Request {
    Request { method: Method::GET, path: path.into(), headers: Vec::new(), body: Bytes::new() }
}

/// A POST request.
pub fn post(path: impl Into<String>) -> Request {
    Request { method: Method::POST, ..get(path) }
}

impl Request {
    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Adds an idempotency key.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        self.header("Idempotency-Key", key)
    }

    /// Sets the body and its content type.
    #[must_use]
    pub fn body(mut self, content_type: impl Into<String>, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self.header("Content-Type", content_type)
    }

    /// Sets a JSON body, written as given.
    #[must_use]
    pub fn json(self, body: impl Into<String>) -> Self {
        self.body("application/json", body.into())
    }

    /// The request as HTTP/1.1 has it on the wire, for a tour that breaks off while it sends.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\nHost: localhost\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            bytes.push_str(&format!("{name}: {value}\r\n"));
        }
        bytes.push_str(&format!("Content-Length: {}\r\n\r\n", self.body.len()));
        [bytes.as_bytes(), &self.body].concat()
    }
}

/// A response, read whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, to the byte.
    pub body: Bytes,
}

impl Reply {
    /// A header as text; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Whether it says that it is a replay.
    pub fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == "true"
    }

    /// Whether it replays `first`: the same status, the same body to the byte, the same location and type, and marked.
    pub fn replays(&self, first: &Self) -> bool {
        let same_headers = ["location", "content-type"].iter().all(|name| self.header(name) == first.header(name));
        self.is_replay() && self.status == first.status && self.body == first.body && same_headers
    }

    /// A field of its JSON body; null if there is none.
    pub fn field(&self, name: &str) -> Value {
        serde_json::from_slice::<Value>(&self.body).map_or(Value::Null, |mut body| body[name].take())
    }

    /// The name at the end of a problem's type, such as `key-reused`; empty if it is no problem.
    pub fn problem(&self) -> String {
        let kind = self.field("type");
        kind.as_str().and_then(|url| url.rsplit('#').next()).unwrap_or_default().to_owned()
    }
}

/// Sends requests and prints nothing.
#[derive(Clone, Debug, Default)]
pub struct Client(reqwest::Client);

impl Client {
    /// Sends a request to a server on this machine.
    ///
    /// # Errors
    /// If there is no complete response within 30 seconds.
    pub async fn send(&self, address: &str, request: &Request) -> Result<Reply, reqwest::Error> {
        let url = format!("http://{address}{}", request.path);
        let mut builder = self.0.request(request.method.clone(), url).timeout(Duration::from_secs(30));
        for (name, value) in &request.headers {
            builder = builder.header(*name, value);
        }
        let response = builder.body(request.body.clone()).send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok(Reply { status, headers, body: response.bytes().await? })
    }
}
