//! The format of the operator state file: a line with the format's name and the SHA-256 of the rest, then JSON. Pure:
//! bytes in, bytes out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate::credential::CREDENTIAL;
use tollgate::policy::Mode;
use tollgate::store::Store;
use tollgate::time::WallOffset;
use tollgate::{
    Block, CheckRequest, CredentialDigest, Engine, ExpiringOverride, LimitOverride, RequestError, Timestamp,
};
use tollgate_overload::Controller;

use super::items::{FleetItem, HeldItem, HeldItems};
use crate::file_watch::Version;
use tollgate_tower::shed::Shedder;

/// The beginning of the first line.
const FORM: &str = "tollgate-operator-state 1 ";
/// The ids of items, or their beginnings.
const ALL_ID: &str = "all";
const LIMIT_ID: &str = "limit:";
const OVERLOAD_ID: &str = "overload:";
const BLOCK_ID: &str = "block:";

/// All overrides and blocks that have not expired.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OperatorState {
    /// The override of all limits.
    all: Option<ExpiringOverrideEntry>,
    /// The overrides of single limits.
    limits: Vec<LimitEntry>,
    blocks: Vec<BlockEntry>,
    /// Overrides of overload controllers. Omitted if empty, so that a version without controllers can read the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    overload: Vec<LimitEntry>,
    /// The items of the fleet, as the node knows them. Omitted without a shared store.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) shared: BTreeMap<String, FleetItem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpiringOverrideEntry {
    #[serde(alias = "ruling")]
    kind: OverrideEntry,
    until: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OverrideEntry {
    Off,
    Shadow,
    Percent(u8),
}

/// An exact instant: microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Micros(u64);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitEntry {
    name: String,
    #[serde(rename = "override", alias = "ruled")]
    expiring: ExpiringOverrideEntry,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockEntry {
    attributes: Vec<(String, String)>,
    until: Micros,
}

impl Micros {
    const fn instant(self) -> Timestamp {
        Timestamp::from_unix_micros(self.0)
    }
}

impl From<ExpiringOverride> for ExpiringOverrideEntry {
    fn from(ExpiringOverride { kind, until }: ExpiringOverride) -> Self {
        let kind = match kind {
            LimitOverride::Off => OverrideEntry::Off,
            LimitOverride::Shadow => OverrideEntry::Shadow,
            LimitOverride::Percent(percent) => OverrideEntry::Percent(percent),
        };
        Self { kind, until: Micros(until.unix_micros()) }
    }
}

impl From<ExpiringOverrideEntry> for ExpiringOverride {
    fn from(ExpiringOverrideEntry { kind, until }: ExpiringOverrideEntry) -> Self {
        let kind = match kind {
            OverrideEntry::Off => LimitOverride::Off,
            OverrideEntry::Shadow => LimitOverride::Shadow,
            OverrideEntry::Percent(percent) => LimitOverride::Percent(percent),
        };
        Self { kind, until: until.instant() }
    }
}

impl From<&Block> for BlockEntry {
    fn from(block: &Block) -> Self {
        Self { attributes: block.attributes().to_vec(), until: Micros(block.until().unix_micros()) }
    }
}

impl BlockEntry {
    /// Replaces plain credentials, as an earlier version wrote them, by their digests.
    fn sealed(mut self) -> Self {
        for (_, value) in self.attributes.iter_mut().filter(|(name, _)| name == CREDENTIAL) {
            *value = CredentialDigest::of_value(value).to_string();
        }
        self
    }

    /// The id of its item.
    fn id(&self) -> String {
        let text = serde_json::to_vec(&self.attributes).unwrap_or_default();
        format!("{BLOCK_ID}{}", Version::of(&text).hex())
    }

    fn apply<S: Store>(&self, engine: &Engine<S>, now: Timestamp) -> Result<(), String> {
        let request = self.request().map_err(|error| error.to_string())?;
        let blocked = engine.operator().block(&request, self.until.instant(), now);
        blocked.map(drop).map_err(|error| error.to_string())
    }

    fn request(&self) -> Result<CheckRequest<'_>, RequestError> {
        let mut request = CheckRequest::new();
        for (name, value) in &self.attributes {
            request.push(name, value.as_str())?;
        }
        Ok(request)
    }
}

impl OperatorState {
    /// The current overrides and blocks of an engine, and of the overload controllers if there are any.
    pub(super) fn of<S: Store>(engine: &Engine<S>, shedder: Option<&Shedder>, now: Timestamp) -> Self {
        let (all, single) = engine.operator().overrides(now).list();
        Self {
            all: all.map(ExpiringOverrideEntry::from),
            limits: single
                .into_iter()
                .map(|(name, expiring)| LimitEntry { name, expiring: expiring.into() })
                .collect(),
            blocks: engine.operator().blocks(now).iter().map(|block| BlockEntry::from(&**block)).collect(),
            overload: shedder.map(|shedder| overridden_controllers(shedder, now)).unwrap_or_default(),
            shared: BTreeMap::new(),
        }
    }

    /// The overrides and blocks as items.
    pub(super) fn items(&self) -> HeldItems {
        let expiring =
            |id: String, expiring: &ExpiringOverrideEntry| held(id, expiring.until, &expiring.kind);
        let single = |kind: &'static str| {
            move |limit: &LimitEntry| expiring(format!("{kind}{}", limit.name), &limit.expiring)
        };
        let all = self.all.iter().map(|all| expiring(ALL_ID.to_owned(), all));
        let overrides = all.chain(self.limits.iter().map(single(LIMIT_ID)));
        let overrides = overrides.chain(self.overload.iter().map(single(OVERLOAD_ID)));
        let blocks = self.blocks.iter().map(|block| held(block.id(), block.until, &block.attributes));
        overrides.chain(blocks).flatten().collect()
    }

    /// The overrides and blocks of items. Items of a kind that this version does not know are left out.
    pub(super) fn of_items(items: &HeldItems) -> Self {
        let mut state = Self::default();
        for (id, HeldItem { until, text }) in items {
            let until = Micros(*until);
            let expiring = || Some(ExpiringOverrideEntry { kind: serde_json::from_str(text).ok()?, until });
            let entry = |name: &str| Some(LimitEntry { name: name.to_owned(), expiring: expiring()? });
            if id == ALL_ID {
                state.all = expiring();
            } else if let Some(name) = id.strip_prefix(LIMIT_ID) {
                state.limits.extend(entry(name));
            } else if let Some(name) = id.strip_prefix(OVERLOAD_ID) {
                state.overload.extend(entry(name));
            } else if id.starts_with(BLOCK_ID) {
                let attributes = serde_json::from_str(text).ok();
                state.blocks.extend(attributes.map(|attributes| BlockEntry { attributes, until }));
            }
        }
        state
    }

    /// Makes an engine and its controllers hold this state, where it is not what they hold now (`held`). Returns what
    /// they rejected.
    pub(super) fn replace<S: Store>(
        self,
        held: &Self,
        engine: &Engine<S>,
        shedder: Option<&Shedder>,
        now: Timestamp,
    ) -> Vec<String> {
        let mut refused: Vec<String> = Vec::new();
        for gone in held.blocks.iter().filter(|block| !self.blocks.iter().any(|kept| kept.id() == block.id()))
        {
            if let Ok(request) = gone.request() {
                engine.operator().unblock(&request, now);
            }
        }
        for block in self.blocks.iter().filter(|block| !held.blocks.contains(block)) {
            refused.extend(block.apply(engine, now).err());
        }
        if (&self.all, &self.limits) != (&held.all, &held.limits) {
            let single = self.limits.into_iter().map(|limit| (limit.name, limit.expiring.into())).collect();
            let expiring =
                engine.operator().resume_overrides((self.all.map(ExpiringOverride::from), single), now);
            refused.extend(expiring.err().map(|error| error.to_string()));
        }
        let Some(shedder) = shedder else { return refused };
        for gone in held
            .overload
            .iter()
            .filter(|expiring| !self.overload.iter().any(|kept| kept.name == expiring.name))
        {
            restore_controller(shedder, &gone.name, now);
        }
        for expiring in self.overload.iter().filter(|expiring| !held.overload.contains(expiring)) {
            // A fleet may have gateways with other controllers than this one.
            let _ = override_controller(Some(shedder), expiring);
        }
        refused
    }

    /// Converts the times to the wall clock, which the file uses.
    pub(super) fn on_wall(self, wall: WallOffset) -> Self {
        self.moved(|until| until.on_wall(wall))
    }

    /// Converts the times to the decision clock, which the engine uses.
    pub(super) fn off_wall(self, wall: WallOffset) -> Self {
        self.moved(|until| until.off_wall(wall))
    }

    fn moved(mut self, moved: impl Fn(Timestamp) -> Timestamp) -> Self {
        let overrides = self.all.iter_mut().chain(self.limits.iter_mut().map(|limit| &mut limit.expiring));
        let overrides = overrides.chain(self.overload.iter_mut().map(|controller| &mut controller.expiring));
        let ends = overrides
            .map(|expiring| &mut expiring.until)
            .chain(self.blocks.iter_mut().map(|block| &mut block.until));
        ends.for_each(|until| *until = Micros(moved(until.instant()).unix_micros()));
        self
    }

    /// Reads the bytes of a file, and drops what has expired.
    ///
    /// # Errors
    /// When the bytes are not exactly what was written.
    pub(super) fn read(bytes: &[u8], now: Timestamp) -> Result<Self, String> {
        let (head, body) = split(bytes).ok_or("it has no first line")?;
        let written = head.strip_prefix(FORM).ok_or("its first line is not one that this version writes")?;
        if written != Version::of(body).hex() {
            return Err("it is not what was written: it was cut off or changed".to_owned());
        }
        let mut state: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        state.all = state.all.filter(|expiring| now < expiring.until.instant());
        state.limits.retain(|limit| now < limit.expiring.until.instant());
        state.blocks.retain(|block| now < block.until.instant());
        state.blocks = state.blocks.into_iter().map(BlockEntry::sealed).collect();
        state.overload.retain(|controller| now < controller.expiring.until.instant());
        state.shared.retain(|_, item| item.ends_after(now.unix_micros()));
        Ok(state)
    }

    /// Serializes the state to the bytes of a file.
    ///
    /// # Errors
    /// When it cannot be serialized, which does not happen. An error costs one attempt and not the process.
    pub(super) fn write(&self) -> Result<Vec<u8>, serde_json::Error> {
        let body = serde_json::to_vec(self)?;
        let mut bytes = format!("{FORM}{}\n", Version::of(&body).hex()).into_bytes();
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    /// The number of blocks, and the number of overrides.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.blocks.len(), self.limits.len() + self.overload.len() + usize::from(self.all.is_some()))
    }

    /// Applies the state to a fresh engine and fresh controllers. Returns what they rejected.
    pub(super) fn apply<S: Store>(
        self,
        engine: &Engine<S>,
        shedder: Option<&Shedder>,
        now: Timestamp,
    ) -> Vec<String> {
        let single = self.limits.into_iter().map(|limit| (limit.name, limit.expiring.into())).collect();
        let expiring =
            engine.operator().resume_overrides((self.all.map(ExpiringOverride::from), single), now);
        let mut refused: Vec<String> = expiring.err().map(|error| error.to_string()).into_iter().collect();
        for block in &self.blocks {
            refused.extend(block.apply(engine, now).err());
        }
        refused.extend(self.overload.iter().filter_map(|state| override_controller(shedder, state).err()));
        refused
    }
}

/// An item. Text and numbers always have a form in JSON.
fn held(id: String, until: Micros, value: &impl Serialize) -> Option<(String, HeldItem)> {
    Some((id, HeldItem { until: until.0, text: serde_json::to_string(value).ok()? }))
}

fn restore_controller(shedder: &Shedder, name: &str, now: Timestamp) {
    let named = Controller::ALL.into_iter().find(|controller| controller.as_str() == name);
    if let Some(controller) = named {
        // One that does not exist has nothing to restore.
        let _ = shedder.switch(controller, |switch| switch.revive(now));
    }
}

fn overridden_controllers(shedder: &Shedder, now: Timestamp) -> Vec<LimitEntry> {
    let expiring = |controller: Controller| {
        let (mode, until) = shedder.switch(controller, |switch| switch.active_override(now)).flatten()?;
        let kind = if mode == Mode::Shadow { OverrideEntry::Shadow } else { OverrideEntry::Off };
        let expiring = ExpiringOverrideEntry { kind, until: Micros(until.unix_micros()) };
        Some(LimitEntry { name: controller.as_str().to_owned(), expiring })
    };
    Controller::ALL.into_iter().filter_map(expiring).collect()
}

fn override_controller(
    shedder: Option<&Shedder>,
    LimitEntry { name, expiring }: &LimitEntry,
) -> Result<(), String> {
    let until = expiring.until.instant();
    let named = Controller::ALL.into_iter().find(|controller| controller.as_str() == name);
    let switched = shedder.zip(named).and_then(|(shedder, controller)| {
        shedder.switch(controller, |switch| match expiring.kind {
            OverrideEntry::Shadow => switch.shadow(until),
            OverrideEntry::Off | OverrideEntry::Percent(_) => switch.kill(until),
        })
    });
    switched.ok_or_else(|| format!("the config has no controller {name:?} of overload any more"))
}

fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (head, rest) = bytes.split_at_checked(end)?;
    Some((std::str::from_utf8(head).ok()?, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use tollgate::{Policy, Scope, Ticks};

    use super::*;

    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    fn engine(policy: &str) -> Engine {
        Engine::builder()
            .policy(Policy::compile("test", policy.as_bytes()).unwrap())
            .clock(tollgate::ManualClock::starting_at(T0).clock())
            .build()
    }

    /// The file has wall-clock times, because the next process starts by the wall clock. A server whose clock was a
    /// year behind at its start, and was set later, does not lose its operator state in a restart.
    #[test]
    fn operator_state_is_kept_in_wall_clock_time() {
        let year = 365 * 86_400;
        let kept = OperatorState::of(&busy(), None, T0).on_wall(WallOffset::from_micros(year * 1_000_000));
        let later = T0 + Ticks::from_secs(year.unsigned_abs());
        let read = OperatorState::read(&kept.write().unwrap(), later).unwrap();
        assert_eq!(read.counts(), kept.counts());
        assert!(read.counts().0 + read.counts().1 > 2, "{read:?}");
    }

    fn busy() -> Engine {
        let engine = engine("limits: [{name: a, rate: 1/h}, {name: b, by: [k], rate: 1/h}]");
        let until = |seconds| T0 + Ticks::from_secs(seconds);
        let rule = |scope, kind, seconds| {
            engine
                .operator()
                .set_override(scope, ExpiringOverride { kind, until: until(seconds) }, T0)
                .unwrap();
        };
        rule(Scope::All, LimitOverride::Shadow, 10);
        rule(Scope::Limit("a"), LimitOverride::Off, 20);
        rule(Scope::Limit("b"), LimitOverride::Percent(30), 30);
        let key = CheckRequest::new().with("tenant", "k\u{1b}\"1\n").unwrap().with("n", 5).unwrap();
        engine.operator().block(&key, until(25), T0).unwrap();
        engine
    }

    /// Overrides and blocks are restored to the tick, also under a policy that lost a limit. Expired ones are not
    /// restored.
    #[test]
    fn operator_state_is_restored() {
        let before = busy();
        let bytes = OperatorState::of(&before, None, T0).write().unwrap();
        for seconds in [0, 10, 22, 27, 30] {
            let now = T0 + Ticks::from_secs(seconds);
            let state = OperatorState::read(&bytes, now).unwrap();
            let after = engine("limits: [{name: a, rate: 1/h}]");
            assert_eq!(state.apply(&after, None, now), Vec::<String>::new());
            assert_eq!(
                after.operator().overrides(now).list(),
                before.operator().overrides(now).list(),
                "after {seconds} s"
            );
            assert_eq!(after.operator().blocks(now), before.operator().blocks(now), "after {seconds} s");
        }
    }

    /// Items say all that a state says, and a state of items makes another engine hold the same.
    #[test]
    fn states_are_items() {
        let before = busy();
        let held = OperatorState::of(&before, None, T0);
        let items = held.items();
        assert_eq!(items.len(), 4, "{items:?}");
        let after = engine("limits: [{name: a, rate: 1/h}, {name: b, by: [k], rate: 1/h}]");
        let key = CheckRequest::new().with("tenant", "gone").unwrap();
        after.operator().block(&key, T0 + Ticks::from_secs(9), T0).unwrap();
        let now_held = OperatorState::of(&after, None, T0);
        let refused = OperatorState::of_items(&items).replace(&now_held, &after, None, T0);
        assert_eq!(refused, Vec::<String>::new());
        assert_eq!(OperatorState::of(&after, None, T0), held);
        let refused = OperatorState::default().replace(&held, &after, None, T0);
        assert_eq!((refused.len(), OperatorState::of(&after, None, T0)), (0, OperatorState::default()));
    }

    /// Any flipped bit and any truncation is detected.
    #[test]
    fn damage_is_seen() {
        let bytes = OperatorState::of(&busy(), None, T0).write().unwrap();
        assert!(OperatorState::read(&bytes, T0).is_ok());
        for place in 0..bytes.len() {
            let mut turned = bytes.clone();
            turned[place] ^= 1;
            assert!(OperatorState::read(&turned, T0).is_err(), "byte {place} is another");
            assert!(OperatorState::read(&bytes[..place], T0).is_err(), "only {place} bytes");
        }
    }

    /// Overrides of overload controllers are restored too. One whose controller no longer exists is reported.
    #[test]
    fn overrides_of_controllers_are_restored() {
        let shedder = |plan: &str| {
            let (plan, _) = tollgate_overload::Plan::compile("test", plan.as_bytes()).unwrap();
            Shedder::new(plan, tollgate::ManualClock::new().clock()).unwrap()
        };
        let all = "overload: {worker: , concurrency: , queue: }";
        let (engine, before) = (engine("limits: [{name: a, rate: 1/h}]"), shedder(all));
        let until = |seconds| T0 + Ticks::from_secs(seconds);
        before.switch(Controller::Worker, |switch| switch.kill(until(10)));
        before.switch(Controller::Queue, |switch| switch.shadow(until(20)));
        let bytes = OperatorState::of(&engine, Some(&before), T0).write().unwrap();
        for seconds in [0, 10, 20] {
            let (now, after) = (until(seconds), shedder(all));
            let state = OperatorState::read(&bytes, now).unwrap();
            assert_eq!(state.apply(&engine, Some(&after), now), Vec::<String>::new());
            for controller in Controller::ALL {
                let expiring = [&before, &after]
                    .map(|shedder| shedder.switch(controller, |switch| switch.active_override(now)));
                assert_eq!(expiring[0], expiring[1], "{controller} after {seconds} s");
            }
        }
        let state = OperatorState::read(&bytes, T0).unwrap();
        let refused = state.apply(&engine, Some(&shedder("overload: {worker: }")), T0);
        assert!(refused.len() == 1 && refused[0].contains("queue"), "{refused:?}");
        assert_eq!(OperatorState::read(&bytes, T0).unwrap().apply(&engine, None, T0).len(), 2);
    }
}
