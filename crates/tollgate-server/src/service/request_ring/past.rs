//! Kept requests, put back into the order of their time.

use std::collections::HashSet;

use serde::Serialize;
use tollgate::time::WallOffset;
use tollgate::{CheckRequest, Timestamp};

use super::shape::KeptRequest;
use super::{KeptMinute, LEVEL_MAX, is_kept};

/// The requests of the last hour, of this node or of several, in the order of their time.
pub(crate) struct PastRequests {
    shapes: Vec<KeptRequest>,
    /// When each request came, by the clock of this node, and the index of its shape.
    requests: Vec<(Timestamp, u32)>,
    /// Which of them there are.
    pub(crate) kept: KeptPart,
}

/// Which part of the requests of some time was kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct KeptPart {
    /// The requests of one client in so many are kept: 1 for all of them.
    pub(crate) one_client_in: u64,
    /// The attributes that identify a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<String>,
    /// In how many minutes only the first requests were kept.
    pub(crate) cut_minutes: u64,
    /// The attributes that were kept all the time.
    #[serde(skip)]
    pub(crate) names: Vec<String>,
}

impl PastRequests {
    /// Merges the minutes of several nodes. `most` bounds the number of requests.
    pub(crate) fn merged(
        mut minutes: Vec<KeptMinute>,
        since: Timestamp,
        wall: WallOffset,
        most: usize,
    ) -> Self {
        minutes.retain(|minute| !minute.requests.is_empty());
        minutes.sort_by_key(|minute| minute.from);
        let level_of =
            |minutes: &[KeptMinute]| minutes.iter().map(|minute| minute.level).max().unwrap_or_default();
        // Where clients are left out, minutes that tell clients by another attribute do not fit the others.
        if level_of(&minutes) > 0 {
            let client = minutes.last().and_then(|last| last.client.clone());
            minutes.retain(|minute| minute.client == client);
        }
        let level = fitting(&minutes, level_of(&minutes), most);
        let mut past = Self { shapes: Vec::new(), requests: Vec::new(), kept: KeptPart::default() };
        let mut cut: HashSet<u64> = HashSet::new();
        for minute in &minutes {
            cut.extend(minute.full_at.map(|_| minute.from));
            past.add(minute, level, since, wall);
        }
        past.requests.sort_by_key(|(at, _)| *at);
        past.requests.drain(..past.requests.len().saturating_sub(most));
        let mut names = minutes.first().map(|first| first.names.clone()).unwrap_or_default();
        names.retain(|name| minutes.iter().all(|minute| minute.names.contains(name)));
        past.kept = KeptPart {
            one_client_in: 1 << level.min(LEVEL_MAX + 1),
            client: minutes.last().and_then(|last| last.client.clone()),
            cut_minutes: cut.len() as u64,
            names,
        };
        past
    }

    fn add(&mut self, minute: &KeptMinute, level: u8, since: Timestamp, wall: WallOffset) {
        let read = |(text, client): &(String, u32)| {
            is_kept(*client, level).then(|| KeptRequest::read(text)).flatten()
        };
        let numbers: Vec<Option<u32>> = minute
            .shapes
            .iter()
            .map(|shape| {
                self.shapes.push(read(shape)?);
                u32::try_from(self.shapes.len() - 1).ok()
            })
            .collect();
        for (shape, offset) in &minute.requests {
            let at =
                Timestamp::from_unix_micros(minute.from.saturating_add(u64::from(*offset))).off_wall(wall);
            if let Some(Some(number)) = numbers.get(*shape as usize).filter(|_| at >= since) {
                self.requests.push((at, *number));
            }
        }
    }

    /// Each request with its instant, in order. One that exceeds a bound of requests is left out.
    pub(crate) fn each(&self) -> impl Iterator<Item = (Timestamp, CheckRequest<'_>)> {
        self.requests
            .iter()
            .filter_map(|(at, shape)| Some((*at, self.shapes.get(*shape as usize)?.request().ok()?)))
    }

    /// The instants of the first and the last request.
    pub(crate) fn ends(&self) -> Option<(Timestamp, Timestamp)> {
        Some((self.requests.first()?.0, self.requests.last()?.0))
    }
}

/// The level at which there are at most so many requests.
fn fitting(minutes: &[KeptMinute], mut level: u8, most: usize) -> u8 {
    let kept = |level: u8| -> usize {
        let of_minute = |minute: &KeptMinute| {
            let is_shown = |(shape, _): &&(u32, u32)| {
                minute.shapes.get(*shape as usize).is_some_and(|(_, client)| is_kept(*client, level))
            };
            minute.requests.iter().filter(is_shown).count()
        };
        minutes.iter().map(of_minute).sum()
    };
    while level <= LEVEL_MAX && kept(level) > most {
        level += 1;
    }
    level
}
