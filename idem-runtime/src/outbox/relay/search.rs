//! Where a relay looks for messages, so that what is delivered and cannot be vacuumed yet costs it little.
//!
//! What has been taken leaves a dead entry in the index of what may be taken. As long as a transaction is open that is older, perhaps
//! for hours and for another purpose, none of these entries goes away, and each look walks over all of them. They lie before what is
//! left, in the order of time. So a relay remembers for each topic where it has found the oldest message, begins a little before it,
//! and looks at everything as often as that does not matter.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How much before the oldest message that was found a search begins, in seconds: those that commit late may be older.
const BEFORE: f64 = 0.25;

/// A search through everything may take a twentieth of the time.
const REST: u32 = 20;

pub(super) struct Search {
    /// By topic, in seconds of the database's clock.
    floors: HashMap<String, f64>,
    /// When everything may be searched again.
    whole_at: Instant,
}

impl Search {
    pub(super) fn new() -> Self {
        Self { floors: HashMap::new(), whole_at: Instant::now() }
    }

    /// Whether to look at everything now.
    pub(super) fn is_whole(&self) -> bool {
        Instant::now() >= self.whole_at
    }

    /// The next search is one through everything: there is something that others would miss.
    pub(super) fn look_at_everything(&mut self) {
        self.whole_at = Instant::now();
    }

    pub(super) fn took(&mut self, whole: bool, time: Duration) {
        if whole {
            self.whole_at = Instant::now() + time * REST;
        }
    }

    /// Where to begin for each of the topics.
    pub(super) fn floors(&self, whole: bool, topics: &[String]) -> Vec<f64> {
        let floor = |topic| if whole { None } else { self.floors.get(topic).copied() };
        topics.iter().map(|topic| floor(topic).unwrap_or(f64::NEG_INFINITY)).collect()
    }

    /// The topics that have had messages.
    pub(super) fn topics(&self) -> impl Iterator<Item = &String> {
        self.floors.keys()
    }

    /// The oldest message of a topic was of this time.
    pub(super) fn found(&mut self, whole: bool, topic: &str, oldest: f64) {
        let floor = oldest - BEFORE;
        match self.floors.get_mut(topic) {
            Some(known) => *known = if whole { floor } else { known.max(floor) },
            None => drop(self.floors.insert(topic.to_owned(), floor)),
        }
    }

    /// All topics that have messages.
    pub(super) fn retain(&mut self, topics: &[String]) {
        if self.floors.len() > 2 * topics.len() + 100 {
            self.floors.retain(|topic, _| topics.contains(topic));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_begins_before_the_oldest_and_a_whole_one_is_as_rare_as_it_is_long() {
        let (mut search, topics) = (Search::new(), ["a".to_owned(), "b".to_owned()]);
        assert!(search.is_whole());
        search.found(true, "a", 100.0);
        assert_eq!(search.floors(false, &topics), [99.75, f64::NEG_INFINITY]);
        assert_eq!(search.floors(true, &topics), [f64::NEG_INFINITY; 2]);
        search.found(false, "a", 90.0);
        assert_eq!(search.floors(false, &topics)[0], 99.75, "only a whole search finds older ones");
        search.found(true, "a", 90.0);
        assert_eq!(search.floors(false, &topics)[0], 89.75);
        search.took(false, Duration::from_secs(5));
        search.took(true, Duration::ZERO);
        assert!(search.is_whole());
        search.took(true, Duration::from_secs(5));
        assert!(!search.is_whole());
        search.look_at_everything();
        assert!(search.is_whole());
    }
}
