//! Freezes that all processes of a fleet share: a refusal that one of them gets stops them all.

use std::sync::{Arc, Mutex, PoisonError};

use tollgate::Timestamp;

use crate::bucket::{Freeze, FreezeCause};
use crate::keys::BucketKey;
use crate::random::Random;
use crate::signal::ThrottleKind;

/// Maximum number of freezes that wait to be sent. The oldest are dropped: they end first.
const PENDING_MAX: usize = 64;

/// A freeze of a bucket, as processes send it to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedFreeze {
    /// The process that the server refused.
    pub(crate) process: u64,
    pub(crate) key: BucketKey,
    pub(crate) host: String,
    pub(crate) freeze: Freeze,
}

impl SharedFreeze {
    #[cfg(feature = "redis")]
    /// The frozen bucket. A later freeze of the same bucket replaces the item.
    pub(crate) fn id(&self) -> Option<String> {
        match &self.key {
            BucketKey::Origin(origin) => Some(format!("freeze {origin}")),
            BucketKey::Named(origin, name) => Some(format!("freeze {origin} {name}")),
            BucketKey::Route(origin, route) => Some(format!("freeze route {origin} {route}")),
            BucketKey::Host(_) | BucketKey::Unknown(..) | BucketKey::Limit(..) => None,
        }
    }

    /// One line: the process, the kind, the host, the origin, and which bucket of it.
    pub(crate) fn text(&self) -> Option<String> {
        let FreezeCause::Throttled(kind) = self.freeze.cause else { return None };
        let (origin, class, name) = match &self.key {
            BucketKey::Origin(origin) => (origin, "origin", ""),
            BucketKey::Named(origin, name) => (origin, "named", &**name),
            BucketKey::Route(origin, route) => (origin, "route", &**route),
            BucketKey::Host(_) | BucketKey::Unknown(..) | BucketKey::Limit(..) => return None,
        };
        let (process, kind, host) = (self.process, kind.name(), &self.host);
        let line = format!("outbound\t{process}\t{kind}\t{host}\t{origin}\t{class}\t{name}");
        (!line.contains('\n')).then_some(line)
    }

    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn read(text: &str, until: Timestamp) -> Option<Self> {
        let mut parts = text.strip_prefix("outbound\t")?.splitn(6, '\t');
        let kinds = [
            ThrottleKind::Rate,
            ThrottleKind::Concurrency,
            ThrottleKind::Day,
            ThrottleKind::Money,
            ThrottleKind::Overload,
        ];
        let process = parts.next()?.parse().ok()?;
        let kind = parts.next()?;
        let kind = kinds.into_iter().find(|known| known.name() == kind)?;
        let (host, origin) = (parts.next()?.to_owned(), Arc::from(parts.next()?));
        let key = match (parts.next()?, Arc::from(parts.next()?)) {
            ("origin", _) => BucketKey::Origin(origin),
            ("named", name) => BucketKey::Named(origin, name),
            ("route", route) => BucketKey::Route(origin, route),
            _ => return None,
        };
        Some(Self { process, key, host, freeze: Freeze { until, cause: FreezeCause::Throttled(kind) } })
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
    /// Keeps a freeze for the next exchange. A failing server is each process's own experience, and is not shared.
    pub(crate) fn publish(&self, key: &BucketKey, host: &str, freeze: Freeze) {
        let shared = SharedFreeze { process: self.process, key: key.clone(), host: host.to_owned(), freeze };
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
            if !is_known && shared.freeze.until > now && pending.len() < PENDING_MAX {
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

    /// A freeze survives the way through the store.
    #[test]
    fn a_freeze_is_read_as_it_was_written() {
        let until = Timestamp::from_unix_seconds(1_700_000_000);
        let cause = FreezeCause::Throttled(ThrottleKind::Day);
        for key in [
            BucketKey::Origin("api.example.com abc".into()),
            BucketKey::Named("api.example.com".into(), "core".into()),
            BucketKey::Route("api.example.com".into(), "GET /a\tb".into()),
        ] {
            let (host, freeze) = ("api.example.com".to_owned(), Freeze { until, cause });
            let shared = SharedFreeze { process: 7, key, host, freeze };
            assert_eq!(SharedFreeze::read(&shared.text().unwrap(), until), Some(shared));
        }
        assert_eq!(SharedFreeze::read("block 1", until), None);
    }
}
