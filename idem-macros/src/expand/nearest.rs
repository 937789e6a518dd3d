//! The known word nearest to a mistyped one.

/// The candidate a typo probably meant, if one is near enough: at most a third of its letters (and at least one) differ.
pub(super) fn nearest<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (distance(written, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours, each counted once.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.to_lowercase().chars().collect();
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let cell = |i, j| {
        if i == 0 {
            j
        } else if j == 0 {
            i
        } else {
            0
        }
    };
    let mut rows: Vec<Vec<usize>> = (0..=left.len()).map(|i| (0..=right.len()).map(|j| cell(i, j)).collect()).collect();
    for i in 1..=left.len() {
        for j in 1..=right.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_its_option_and_a_stranger_finds_none() {
        let options = ["scope", "ttl", "fingerprint", "in_flight"];
        assert_eq!(nearest("scoep", options), Some("scope"));
        assert_eq!(nearest("tll", options), Some("ttl"));
        assert_eq!(nearest("fingerprnt", options), Some("fingerprint"));
        assert_eq!(nearest("inflight", options), Some("in_flight"));
        assert_eq!(nearest("Scope", options), Some("scope"));
        assert_eq!(nearest("colour", options), None);
        assert_eq!(nearest("", options), None);
    }
}
