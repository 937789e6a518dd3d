//! The plot: how far each number is from its goal, and the systems side by side.

use std::fmt::Write;

use serde_json::Value;

use crate::report::{Finding, Goal, Report, number};

const WIDTH: f64 = 880.0;
const ROW: f64 = 26.0;
const LABELS: f64 = 390.0;
/// What a goal is wide; twice as good is the most that is drawn.
const UNIT: f64 = 170.0;
const MET: &str = "#2a7f62";
const MISSED: &str = "#c2452d";
const OTHER: &str = "#8a94a6";

/// Draws the findings that have a scale, and the peers' throughput.
pub(crate) fn draw(reports: &[Report], machine: &str) -> String {
    let findings: Vec<_> = reports
        .iter()
        .flat_map(|report| report.findings.iter().map(move |finding| (report.command, finding)))
        .filter(|(_, finding)| attainment(finding).is_some())
        .collect();
    let systems: Vec<_> = reports.iter().filter(|report| report.command == "peers").flat_map(systems).collect();
    let goals_height = 84.0 + ROW * findings.len() as f64;
    let peers_height = if systems.is_empty() { 0.0 } else { 44.0 + ROW * systems.len() as f64 };
    let height = goals_height + peers_height + 40.0;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#1d2430\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, 20.0, 30.0, "start", "font-size=\"17\" font-weight=\"600\"", "Measured against the goals");
    draw_findings(&mut svg, &findings, 48.0);
    if !systems.is_empty() {
        draw_systems(&mut svg, &systems, goals_height + 12.0);
    }
    text(&mut svg, 20.0, height - 16.0, "start", "font-size=\"11\" fill=\"#5a6474\"", machine);
    svg.push_str("</svg>\n");
    svg
}

/// How good a number is, where 1 is the goal. Counts that must be exact have no scale.
fn attainment(finding: &Finding) -> Option<f64> {
    let attainment = match finding.goal {
        Goal::AtLeast(goal) => finding.value / goal,
        Goal::AtMost(goal) if finding.value <= 0.0 && goal > 0.0 => 2.0,
        Goal::AtMost(goal) => goal / finding.value,
        Goal::Exactly(_) => return None,
    };
    attainment.is_finite().then_some(attainment)
}

fn draw_findings(svg: &mut String, findings: &[(&str, &Finding)], top: f64) {
    text(svg, LABELS + UNIT, top + 8.0, "middle", "font-size=\"11\" fill=\"#5a6474\"", "goal");
    for (place, (command, finding)) in findings.iter().enumerate() {
        let y = top + 16.0 + ROW * place as f64;
        let length = attainment(finding).unwrap_or(0.0).clamp(0.0, 2.0) * UNIT;
        let colour = if finding.is_met() { MET } else { MISSED };
        text(svg, LABELS - 12.0, y + 17.0, "end", "", &format!("{command}: {}", finding.name));
        bar(svg, y, length, colour);
        let value = format!("{} (goal {})", number(finding.value), finding.goal);
        // Right of the goal's line, which a label must not cross.
        text(svg, LABELS + length.max(UNIT) + 8.0, y + 17.0, "start", "fill=\"#5a6474\"", &value);
    }
    let (x, bottom) = (LABELS + UNIT, top + 16.0 + ROW * findings.len() as f64);
    let _ = writeln!(
        svg,
        "<line x1=\"{x}\" x2=\"{x}\" y1=\"{}\" y2=\"{bottom}\" stroke=\"#1d2430\" stroke-dasharray=\"3 3\"/>",
        top + 14.0
    );
}

/// A bar of the second panel.
struct System {
    name: String,
    /// What it does so many times a second.
    what: &'static str,
    rate: f64,
}

fn systems(report: &Report) -> Vec<System> {
    let rates = |what: &'static str| {
        report.details.iter().filter_map(move |(name, system): (&String, &Value)| {
            Some(System { name: name.clone(), what, rate: system.get(what)?.as_f64()? })
        })
    };
    rates("fresh").chain(rates("replay")).collect()
}

/// Each kind of request has its own scale: a replay is many times cheaper than a fresh key.
fn draw_systems(svg: &mut String, systems: &[System], top: f64) {
    let heading = "Beside the others: requests a second";
    text(svg, 20.0, top + 12.0, "start", "font-size=\"17\" font-weight=\"600\"", heading);
    for (place, System { name, what, rate }) in systems.iter().enumerate() {
        let most = systems.iter().filter(|other| other.what == *what).map(|other| other.rate).fold(1.0, f64::max);
        let (y, length) = (top + 26.0 + ROW * place as f64, rate / most * 2.0 * UNIT);
        text(svg, LABELS - 12.0, y + 17.0, "end", "", &format!("{name}, {what}"));
        bar(svg, y, length, if name == "idem" { MET } else { OTHER });
        text(svg, LABELS + length + 8.0, y + 17.0, "start", "fill=\"#5a6474\"", &number(rate.round()));
    }
}

fn bar(svg: &mut String, y: f64, length: f64, colour: &str) {
    let (y, height) = (y + 3.0, ROW - 6.0);
    let _ = writeln!(
        svg,
        "<rect x=\"{LABELS}\" y=\"{y}\" width=\"{length:.1}\" height=\"{height}\" rx=\"2\" fill=\"{colour}\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, style: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{content}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Table;

    #[test]
    fn what_has_a_scale_is_drawn_and_missed_goals_stand_out() {
        let findings = vec![
            Finding::count("vs_plain", "", 0.75, Goal::AtLeast(0.8)),
            Finding::count("extra_round_trips", "", 0.0, Goal::AtMost(1.0)),
            Finding::count("commits", "", 1.0, Goal::Exactly(1.0)),
        ];
        let details = [("idem".to_owned(), serde_json::json!({ "fresh": 10, "replay": 20 }))].into_iter().collect();
        let (title, table) = (String::new(), Table::default());
        let report = Report { command: "peers", title, table, findings, details };
        let svg = draw(&[report], "a < b");
        assert_eq!(svg.matches("rx=\"2\"").count(), 4, "two findings, two rates: {svg}");
        assert_eq!(svg.matches(MISSED).count(), 1, "{svg}");
        assert!(svg.contains("0.75 (goal ≥ 0.80)") && svg.contains("a &lt; b") && svg.ends_with("</svg>\n"), "{svg}");
    }
}
