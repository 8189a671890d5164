//! Freezes that all processes of a fleet share: a refusal that one of them gets stops them all.

use std::sync::{Arc, Mutex, PoisonError};

use tollgate::{Ticks, Timestamp};

use crate::freeze::{Freeze, FreezeCause, Statement};
use crate::keys::BucketKey;
use crate::random::Random;
use crate::signal::ThrottleKind;

/// Maximum number of freezes that wait to be sent. The oldest are dropped: they end first.
const PENDING_MAX: usize = 64;
/// The word for the end of a freeze.
const THAWED: &str = "thawed";

/// The change of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreezeChange {
    /// The server refused a call.
    Frozen(Freeze),
    /// An operator ended a freeze that would have held until this instant.
    Thawed(Timestamp),
}

impl FreezeChange {
    /// Until when the others must know it.
    #[cfg(feature = "redis")]
    pub(crate) const fn until(&self) -> Timestamp {
        match self {
            Self::Frozen(freeze) => freeze.until,
            Self::Thawed(until) => *until,
        }
    }

    /// One word: the kind of the limit, with the words of the server if it said any, or that the freeze was ended.
    fn word(&self) -> Option<String> {
        match self {
            Self::Thawed(_) => Some(THAWED.to_owned()),
            Self::Frozen(Freeze { cause: FreezeCause::Throttled(kind), statement, .. }) => {
                let words = |statement: Statement| {
                    format!("@{}+{}", statement.at.unix_micros(), statement.wait.as_micros())
                };
                Some(format!("{}{}", kind.name(), statement.map(words).unwrap_or_default()))
            }
            Self::Frozen(Freeze { cause: FreezeCause::Failing(_), .. }) => None,
        }
    }

    #[cfg(any(test, feature = "redis"))]
    fn read(word: &str, until: Timestamp) -> Option<Self> {
        if word == THAWED {
            return Some(Self::Thawed(until));
        }
        let (kind, words) = word.split_once('@').map_or((word, None), |(kind, words)| (kind, Some(words)));
        let kinds = [
            ThrottleKind::Rate,
            ThrottleKind::Concurrency,
            ThrottleKind::Day,
            ThrottleKind::Money,
            ThrottleKind::Overload,
        ];
        let kind = kinds.into_iter().find(|known| known.name() == kind)?;
        let statement = words.and_then(|words| {
            let (at, wait) = words.split_once('+')?;
            let at = at.parse::<u64>().ok()?.min(Timestamp::MAX.unix_micros());
            Some(Statement {
                at: Timestamp::from_unix_micros(at),
                wait: Ticks::from_micros(wait.parse().ok()?),
            })
        });
        Some(Self::Frozen(Freeze { until, cause: FreezeCause::Throttled(kind), statement }))
    }
}

/// A change of a bucket, as processes send it to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedFreeze {
    /// The process that the server refused, or whose operator ended the freeze.
    pub(crate) process: u64,
    pub(crate) key: BucketKey,
    pub(crate) host: String,
    pub(crate) change: FreezeChange,
}

impl SharedFreeze {
    #[cfg(feature = "redis")]
    /// The bucket. A later change of the same bucket replaces the item.
    pub(crate) fn id(&self) -> Option<String> {
        match &self.key {
            BucketKey::Origin(origin) => Some(format!("freeze {origin}")),
            BucketKey::Named(origin, name) => Some(format!("freeze {origin} {name}")),
            BucketKey::Route(origin, route) => Some(format!("freeze route {origin} {route}")),
            BucketKey::Host(_) | BucketKey::Unknown(..) | BucketKey::Limit(..) => None,
        }
    }

    /// One line: the process, the change, the host, the origin, and which bucket of it.
    pub(crate) fn text(&self) -> Option<String> {
        let word = self.change.word()?;
        let (origin, class, name) = match &self.key {
            BucketKey::Origin(origin) => (origin, "origin", ""),
            BucketKey::Named(origin, name) => (origin, "named", &**name),
            BucketKey::Route(origin, route) => (origin, "route", &**route),
            BucketKey::Host(_) | BucketKey::Unknown(..) | BucketKey::Limit(..) => return None,
        };
        let (process, host) = (self.process, &self.host);
        let line = format!("outbound\t{process}\t{word}\t{host}\t{origin}\t{class}\t{name}");
        (!line.contains('\n')).then_some(line)
    }

    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn read(text: &str, until: Timestamp) -> Option<Self> {
        let mut parts = text.strip_prefix("outbound\t")?.splitn(6, '\t');
        let process = parts.next()?.parse().ok()?;
        let change = FreezeChange::read(parts.next()?, until)?;
        let (host, origin) = (parts.next()?.to_owned(), Arc::from(parts.next()?));
        let key = match (parts.next()?, Arc::from(parts.next()?)) {
            ("origin", _) => BucketKey::Origin(origin),
            ("named", name) => BucketKey::Named(origin, name),
            ("route", route) => BucketKey::Route(origin, route),
            _ => return None,
        };
        Some(Self { process, key, host, change })
    }
}

/// Freezes to be sent to the other processes.
#[derive(Debug)]
pub(crate) struct FreezeOutbox {
    /// Tells this process from the others.
    pub(crate) process: u64,
    pending: Mutex<Vec<SharedFreeze>>,
    /// Wakes the exchange.
    pub(crate) news: Arc<tokio::sync::Notify>,
}

impl Default for FreezeOutbox {
    fn default() -> Self {
        Self { process: Random::new().next(), pending: Mutex::default(), news: Arc::default() }
    }
}

impl FreezeOutbox {
    /// Keeps a change for the next exchange. A failing server is each process's own experience, and is not shared.
    pub(crate) fn publish(&self, key: &BucketKey, host: &str, change: FreezeChange) {
        let shared = SharedFreeze { process: self.process, key: key.clone(), host: host.to_owned(), change };
        if shared.text().is_none() {
            return;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.retain(|known| known.key != shared.key);
        if pending.len() >= PENDING_MAX {
            pending.remove(0);
        }
        pending.push(shared);
        self.news.notify_one();
    }

    /// Keeps what could not be sent, unless a newer freeze of the same bucket came meanwhile or it is over.
    #[cfg(feature = "redis")]
    pub(crate) fn restore(&self, unsent: Vec<SharedFreeze>, now: Timestamp) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for shared in unsent {
            let is_known = pending.iter().any(|known| known.key == shared.key);
            if !is_known && shared.change.until() > now && pending.len() < PENDING_MAX {
                pending.push(shared);
            }
        }
    }

    /// Takes the oldest freezes, at most so many.
    #[cfg(feature = "redis")]
    pub(crate) fn take(&self, most: usize) -> Vec<SharedFreeze> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let most = most.min(pending.len());
        pending.drain(..most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A freeze, with the words of the server, and its end survive the way through the store.
    #[test]
    fn a_freeze_is_read_as_it_was_written() {
        let until = Timestamp::from_unix_seconds(1_700_000_000);
        let cause = FreezeCause::Throttled(ThrottleKind::Day);
        let statement = Statement { at: until, wait: Ticks::from_secs(86_400) };
        let changes =
            [None, Some(statement)].map(|statement| FreezeChange::Frozen(Freeze { until, cause, statement }));
        let changes = changes.into_iter().chain([FreezeChange::Thawed(until)]);
        let keys = [
            BucketKey::Origin("api.example.com abc".into()),
            BucketKey::Named("api.example.com".into(), "core".into()),
            BucketKey::Route("api.example.com".into(), "GET /a\tb".into()),
        ];
        for (key, change) in keys.into_iter().zip(changes) {
            let shared = SharedFreeze { process: 7, key, host: "api.example.com".to_owned(), change };
            assert_eq!(SharedFreeze::read(&shared.text().unwrap(), until), Some(shared));
        }
        assert_eq!(SharedFreeze::read("block 1", until), None);
    }
}
