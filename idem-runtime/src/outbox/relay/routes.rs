//! Which messages a relay takes, how many of them at once, and what it does with them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::delivery::Handler;

/// How many messages are under way at once whose topics the relay does not name.
const ANY_LIMIT: usize = 256;

#[derive(Clone)]
pub(super) struct Route {
    /// `None` for every topic that has no route of its own.
    pub(super) topic: Option<Arc<str>>,
    pub(super) handler: Handler,
    pub(super) limit: u32,
    pub(super) timeout: Duration,
}

impl Route {
    pub(super) fn new(topic: Option<Arc<str>>, handler: Handler, limit: u32, timeout: Duration) -> Self {
        Self { topic, handler, limit, timeout }
    }
}

pub(super) struct Routes {
    named: HashMap<Arc<str>, Route>,
    any: Option<Route>,
    /// How many messages of each topic are under way.
    under_way: HashMap<Arc<str>, u32>,
}

/// Topics with the number of messages that may be taken of each.
pub(super) type Places = Vec<(String, i32)>;

impl Routes {
    pub(super) fn new(routes: Vec<Route>) -> Self {
        let (named, any): (Vec<_>, Vec<_>) = routes.into_iter().partition(|route| route.topic.is_some());
        let named = named.into_iter().filter_map(|route| Some((route.topic.clone()?, route))).collect();
        Self { named, any: any.into_iter().next(), under_way: HashMap::new() }
    }

    /// `None` for every topic.
    pub(super) fn topics(&self) -> Option<Vec<String>> {
        self.any.is_none().then(|| self.names())
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.named.keys().map(ToString::to_string).collect()
    }

    pub(super) fn has_named(&self, topic: &str) -> bool {
        self.named.contains_key(topic)
    }

    pub(super) fn takes_any(&self) -> bool {
        self.any.is_some()
    }

    pub(super) fn of(&self, topic: &str) -> Option<&Route> {
        self.named.get(topic).or(self.any.as_ref())
    }

    /// The places that are free, `others` being the topics without a name that have messages.
    pub(super) fn places(&self, others: Vec<String>) -> Places {
        let free = |topic: &str, limit: u32| limit.saturating_sub(self.under_way.get(topic).copied().unwrap_or(0));
        let named = self.named.iter().map(|(topic, route)| (topic.to_string(), free(topic, route.limit)));
        let mut left = ANY_LIMIT.saturating_sub(self.of_any()) as u32;
        let limit = self.any.as_ref().map_or(0, |route| route.limit);
        let others = others.into_iter().map(|topic| {
            let places = free(&topic, limit).min(left);
            left -= places;
            (topic, places)
        });
        let places = named.chain(others).filter(|(_, places)| *places > 0);
        places.map(|(topic, places)| (topic, places.cast_signed())).collect()
    }

    /// The topics whose places are all taken.
    pub(super) fn full(&self) -> Vec<String> {
        let is_full = |topic: &str, count: u32| self.of(topic).is_none_or(|route| count >= route.limit);
        let full = self.under_way.iter().filter(|(topic, count)| is_full(topic, **count));
        full.map(|(topic, _)| topic.to_string()).collect()
    }

    fn of_any(&self) -> usize {
        self.under_way
            .iter()
            .filter(|(topic, _)| !self.named.contains_key(*topic))
            .map(|(_, count)| *count as usize)
            .sum()
    }

    pub(super) fn begin(&mut self, topic: &Arc<str>) {
        *self.under_way.entry(Arc::clone(topic)).or_default() += 1;
    }

    pub(super) fn end(&mut self, topic: &Arc<str>) {
        if let Some(count) = self.under_way.get_mut(topic) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(topic);
            }
        }
    }

    pub(super) fn end_all(&mut self) {
        self.under_way.clear();
    }
}
