//! The tables live in a schema of their own, with a migrations table of their own: the application's migrations never
//! meet them.

use std::borrow::Cow;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Connection, Executor, PgConnection, SqlSafeStr};

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::postgres::statements::{quoted, safe};

fn migrations() -> Vec<Migration> {
    let migrations = [
        ("idempotency keys", include_str!("../../migrations/0001_idempotency_keys.sql")),
        ("outbox", include_str!("../../migrations/0002_outbox.sql")),
    ];
    let numbered = (1..).zip(migrations);
    numbered
        .map(|(version, (description, sql))| {
            Migration::new(version, description.into(), MigrationType::Simple, sql.into_sql_str(), false)
        })
        .collect()
}

impl Idempotency {
    /// Creates or updates the tables. Any number of processes may call it at once; a second call changes nothing.
    ///
    /// The role needs `CREATE` on the database for it, but where there is nothing to do: that is found out with `SELECT` alone. At run
    /// time `USAGE` on the schema and `SELECT`, `INSERT`, `UPDATE` and `DELETE` on its tables suffice.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a connection, [`Error::Migrate`] for a migration that fails; all of them are then
    /// rolled back.
    pub async fn migrate(&self) -> Result<(), Error> {
        let schema = &self.settings().schema;
        let quoted = quoted(schema);
        // Not the pool's any more: whatever happens to the session happens to nobody else.
        let mut connection = self.connection().await?.detach();
        let migrated = async {
            if is_up_to_date(&mut connection, &quoted).await? {
                return Ok(());
            }
            // One transaction with a transaction-level lock: it works behind a pooler, and a failure leaves nothing.
            // Each statement must see what the lock's last holder committed, whatever the database's default.
            let mut transaction = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await?;
            let lock = "SELECT pg_catalog.pg_advisory_xact_lock(7526475461983302505)";
            (&mut *transaction).execute(lock).await?;
            let exists = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) $1)",
            )
            .bind(schema);
            if !exists.fetch_one(&mut *transaction).await? {
                (&mut *transaction).execute(safe(format!("CREATE SCHEMA {quoted}"))).await?;
            }
            (&mut *transaction).execute(safe(format!("SET LOCAL search_path TO {quoted}"))).await?;
            let mut migrator = Migrator::with_migrations(migrations());
            migrator.dangerous_set_table_name(Cow::Owned(format!("{quoted}._idem_migrations")));
            migrator.set_locking(false);
            // `run` takes an `Acquire`, which would make this future not `Send`.
            migrator.run_direct(None, &mut *transaction, false).await?;
            transaction.commit().await?;
            Ok(())
        }
        .await;
        let _ = connection.close().await;
        migrated.map_err(Error::Migrate)
    }
}

/// Whether every migration has been applied as it is.
async fn is_up_to_date(connection: &mut PgConnection, schema: &str) -> Result<bool, MigrateError> {
    let table = format!("{schema}._idem_migrations");
    let exists = sqlx::query_scalar("SELECT pg_catalog.to_regclass($1) IS NOT NULL").bind(&table).persistent(false);
    if !exists.fetch_one(&mut *connection).await? {
        return Ok(false);
    }
    let applied = safe(format!("SELECT version, checksum FROM {table} WHERE success ORDER BY version"));
    let applied: Vec<(i64, Vec<u8>)> = sqlx::query_as(applied).persistent(false).fetch_all(connection).await?;
    Ok(applied.into_iter().eq(migrations().into_iter().map(|known| (known.version, known.checksum.into_owned()))))
}
