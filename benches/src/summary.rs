//! What `all` leaves behind: the README's table and a plot.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Result;
use crate::options::Options;
use crate::plot;
use crate::report::{Report, Table, number};

/// Where the README shows the numbers.
const RESULTS: [&str; 2] = ["<!-- results -->\n", "<!-- end of results -->\n"];

/// Prints the summary; at full size it also goes into the README and into `benches/results.svg`.
pub(crate) async fn write(reports: &[Report], options: &Options) -> Result<()> {
    let machine = machine().await;
    let markdown = markdown(reports, &machine);
    println!("{markdown}");
    if !options.quick {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let readme = directory.join("../README.md");
        let text = std::fs::read_to_string(&readme)?;
        std::fs::write(readme, with_results(&text, &markdown).ok_or("the README must have a place for the results")?)?;
        std::fs::write(directory.join("results.svg"), plot::draw(reports, &machine))?;
        eprintln!("all: wrote the table into `README.md`, and `benches/results.svg`");
    }
    Ok(())
}

fn with_results(readme: &str, results: &str) -> Option<String> {
    let (before, rest) = readme.split_once(RESULTS[0])?;
    let (_, after) = rest.split_once(RESULTS[1])?;
    let results = results.trim();
    Some(format!("{before}{}{results}\n\n{}{after}", RESULTS[0], RESULTS[1]))
}

fn markdown(reports: &[Report], machine: &str) -> String {
    let mut table = Table::new(["measured", "command", "result", "goal", ""]);
    for report in reports {
        for finding in &report.findings {
            let command = format!("`{}` {}", report.command, finding.name);
            let verdict = if finding.is_met() { "met" } else { "missed" };
            let cells = [finding.meaning.clone(), command, number(finding.value), finding.goal.to_string()];
            table.rows.push(cells.into_iter().chain([verdict.to_owned()]).collect());
        }
    }
    let peers = reports.iter().filter(|report| report.findings.is_empty() || report.command == "relay");
    let peers: String = peers.map(|report| format!("\n{}:\n\n{}", report.title, report.table.markdown())).collect();
    format!("{machine}\n\n{}{peers}", table.markdown())
}

/// Date, processor and versions: what a number means nothing without.
async fn machine() -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let kind = std::fs::read_to_string("/proc/cpuinfo").ok();
    let kind = kind.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("model name")));
    let kind = kind.map_or(std::env::consts::ARCH, |line| line.trim_start_matches([' ', '\t', ':']));
    let plural = if processors == 1 { "" } else { "s" };
    format!(
        "{}, {processors} core{plural} ({kind}, {}), clients and server on the same machine, {}, `fsync` on",
        today(),
        std::env::consts::OS,
        postgres().await
    )
}

async fn postgres() -> String {
    let version = async {
        let stage = crate::stage::Stage::open(&[]).await?;
        let database = stage.database().await?;
        let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(&database.pool()).await?;
        Ok::<_, crate::Error>(version)
    };
    match version.await {
        Ok(version) => format!("Postgres {}", version.split(' ').next().unwrap_or_default()),
        Err(_) => "Postgres".to_owned(),
    }
}

/// The date in UTC, without a calendar crate.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (year, month, day) = date(seconds / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// The date of a day counted from 1970-01-01.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Finding, Goal};

    #[test]
    fn the_readme_has_a_place_for_the_results() {
        let readme = include_str!("../../README.md");
        let with = with_results(readme, "some results\n").expect("a place");
        assert!(with.contains("<!-- results -->\nsome results\n\n<!-- end of results -->"), "{with}");
        assert_eq!(with_results(&with, "others"), with_results(readme, "others"));
    }

    #[test]
    fn days_become_dates() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (789, (1972, 2, 29)),
            (11_016, (2000, 2, 29)),
            (20_787, (2026, 11, 30)),
        ] {
            assert_eq!(date(days), expected);
        }
    }

    #[test]
    fn the_summary_names_what_was_missed() {
        let finding = Finding::count("vs_plain", "throughput", 0.75, Goal::AtLeast(0.8));
        let (table, details) = (Table::new(["handler", "requests/s"]), serde_json::Map::new());
        let title = "how".to_owned();
        let report = Report { command: "overhead", title, table, findings: vec![finding], details };
        let text = markdown(&[report], "a machine");
        assert!(text.starts_with("a machine\n\n| measured |"), "{text}");
        assert!(text.contains("| throughput | `overhead` vs_plain | 0.75 | ≥ 0.80 | missed |"), "{text}");
    }
}
