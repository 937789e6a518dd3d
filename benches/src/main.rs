//! `bench <command> [--json]`: see the [library](idem_benches).

use std::process::ExitCode;

use idem_benches::commands::run;
use idem_benches::options::Options;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = async { run(&Options::parse(std::env::args().skip(1))?).await };
    match ended.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
