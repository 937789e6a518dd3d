//! The service, as one would write it.

use axum::extract::multipart::MultipartError;
use axum::extract::{DefaultBodyLimit, FromRef, FromRequestParts, Multipart, Path, State};
use axum::http::header::{AUTHORIZATION, ETAG, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use idem_runtime::{Idempotency, Tx, idempotent};
use serde::Serialize;
use sha2::{Digest, Sha256};
use sqlx::PgPool;
use tokio::net::TcpListener;

/// The largest upload, in bytes. It is held in memory: the fingerprint covers every byte of it.
pub(crate) const LARGEST: usize = 5 * 1024 * 1024;

#[derive(Clone, FromRef)]
struct AppState {
    pool: PgPool,
    idempotency: Idempotency,
}

/// Whose API token the request carries.
struct User {
    id: i64,
}

/// What was stored.
#[derive(Serialize)]
struct Document {
    id: i64,
    name: String,
    size: usize,
    sha256: String,
}

/// A form of one name and one file.
struct Upload {
    name: String,
    content: Bytes,
}

enum ApiError {
    Unauthorized,
    UnknownDocument,
    MissingField(&'static str),
    Malformed(MultipartError),
    Database(sqlx::Error),
}

/// Stores a file with its digest.
///
/// The same key with the same parts is the same upload, whatever the boundary between them is; a file that differs by a
/// bit is another. What is too large or breaks off is refused while it is read, before its key is claimed.
#[idempotent(scope = user.id, ttl = "24h")]
async fn upload(
    user: User,
    tx: &mut Tx,
    form: Multipart,
) -> Result<(StatusCode, [(HeaderName, String); 2], Json<Document>), ApiError> {
    let Upload { name, content } = read(form).await?;
    let sha256 = Sha256::digest(&content);
    let insert = "INSERT INTO documents (owner_id, name, sha256, content) VALUES ($1, $2, $3, $4) RETURNING id";
    let id: i64 = sqlx::query_scalar(insert)
        .bind(user.id)
        .bind(&name)
        .bind(sha256.as_slice())
        .bind(content.as_ref())
        .fetch_one(&mut *tx)
        .await?;
    let document = Document { id, name, size: content.len(), sha256: hex::encode(sha256) };
    tracing::info!(document = id, size = document.size, "stored");
    let headers = [(LOCATION, format!("/documents/{id}")), (ETAG, format!("\"{}\"", document.sha256))];
    Ok((StatusCode::CREATED, headers, Json(document)))
}

/// Reading needs no key.
async fn download(user: User, State(pool): State<PgPool>, Path(id): Path<i64>) -> Result<Vec<u8>, ApiError> {
    let select = "SELECT content FROM documents WHERE id = $1 AND owner_id = $2";
    let content = sqlx::query_scalar(select).bind(id).bind(user.id).fetch_optional(&pool).await?;
    content.ok_or(ApiError::UnknownDocument)
}

async fn read(mut form: Multipart) -> Result<Upload, ApiError> {
    let (mut name, mut content) = (None, None);
    while let Some(field) = form.next_field().await? {
        match field.name() {
            Some("name") => name = Some(field.text().await?),
            Some("content") => content = Some(field.bytes().await?),
            _ => {}
        }
    }
    let name = name.ok_or(ApiError::MissingField("name"))?;
    let content = content.ok_or(ApiError::MissingField("content"))?;
    Ok(Upload { name, content })
}

/// The application's tables and the runtime's.
pub(crate) async fn migrate(pool: &PgPool) -> Result<(), idem_examples::Error> {
    sqlx::migrate!("src/bin/uploads/migrations").run(pool).await?;
    Idempotency::new(pool.clone()).migrate().await?;
    Ok(())
}

/// Serves until `stop` ends, and then until every upload in flight has its answer.
pub(crate) async fn serve(
    pool: PgPool,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), idem_examples::Error> {
    migrate(&pool).await?;
    let idempotency = Idempotency::new(pool.clone());
    let sweeper = idempotency.sweeper();
    let routes = Router::new()
        .route("/documents", post(upload).layer(DefaultBodyLimit::max(LARGEST)))
        .route("/documents/{id}", get(download))
        .with_state(AppState { pool: pool.clone(), idempotency: idempotency.clone() });

    axum::serve(listener, routes).with_graceful_shutdown(stop).await?;

    idempotency.shutdown().await;
    sweeper.stop().await;
    pool.close().await;
    Ok(())
}

impl FromRequestParts<AppState> for User {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or(ApiError::Unauthorized)?;
        let select = "SELECT id FROM users WHERE token_digest = sha256($1)";
        let id = sqlx::query_scalar(select).bind(token.as_bytes()).fetch_optional(&state.pool).await?;
        id.map(|id| Self { id }).ok_or(ApiError::Unauthorized)
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<MultipartError> for ApiError {
    fn from(error: MultipartError) -> Self {
        Self::Malformed(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "the API token is missing or unknown").into_response(),
            Self::UnknownDocument => (StatusCode::NOT_FOUND, "there is no such document").into_response(),
            Self::MissingField(name) => {
                (StatusCode::UNPROCESSABLE_ENTITY, format!("the form must have a field `{name}`")).into_response()
            }
            Self::Malformed(error) => error.into_response(),
            Self::Database(error) => {
                tracing::error!(%error, "the database failed");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}
