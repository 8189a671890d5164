//! Limits that come with the call, as in `CL.THROTTLE`. No policy contains them, but operator actions still apply. To
//! blocks, such a call is a request with the attributes `key` and `command`. An override of all limits covers these
//! limits too.

use tollgate::store::Store;
use tollgate::{CheckRequest, LimitOverride, Ticks, Timestamp};

use super::Service;
use super::throttle_counters::ThrottleCommand;
use super::throttle_limit::{Charged, Limit};
use crate::protocol::Protocol;
use crate::telemetry::{Admission, is_crowded};

/// The attributes of a call.
const KEY: &str = "key";
const COMMAND: &str = "command";
/// Both of them.
pub(crate) const ATTRIBUTES: [&str; 2] = [KEY, COMMAND];

/// Charges a key by the limit that came with the call.
pub(crate) fn charge<S: Store>(
    service: &Service<S>,
    command: ThrottleCommand,
    key: &[u8],
    limit: &Limit,
    quantity: i64,
    now: Timestamp,
) -> Charged {
    let charge = || {
        let (charged, source) =
            service.throttle_counters.charge(command, key, limit, nanoseconds(now), quantity);
        if is_crowded(source) {
            service.meter.overflow.note(command.command(), source, now);
        }
        charged
    };
    let charged = match blocked_for(service, command, key, now) {
        Some(rest) => limit.blocked(rest),
        None => match service.engine.operator().overrides(now).of_all() {
            Some(LimitOverride::Off) => limit.unasked(),
            Some(LimitOverride::Shadow) => charge().in_shadow(),
            // A percentage is ignored here: these limits have no name by which keys could be sampled.
            Some(LimitOverride::Percent(_)) | None => charge(),
        },
    };
    let admission = if charged.limited { Admission::Refused } else { Admission::Admitted };
    service.meter.record_unnamed(admission, Protocol::Resp);
    charged
}

/// How many nanoseconds an operator's block of this call still lasts. Rounded up to whole milliseconds, because the
/// answer rounds those to seconds.
#[inline]
fn blocked_for<S: Store>(
    service: &Service<S>,
    command: ThrottleCommand,
    key: &[u8],
    now: Timestamp,
) -> Option<i128> {
    // A key that is not UTF-8 cannot be named by a block.
    let key = std::str::from_utf8(key).ok().map(|key| (KEY, key));
    let command = (COMMAND, command.command());
    let block = match key {
        Some(key) => service.engine.operator().blocked(&[key, command], now),
        None => service.engine.operator().blocked(&[command], now),
    };
    block.map(|block| i128::from(block.until().since(now).ceil_millis()) * 1_000_000)
}

/// The state of these attributes in the commands whose calls carry their limit.
pub(crate) fn state<S: Store>(
    service: &Service<S>,
    request: &CheckRequest<'_>,
    now: Timestamp,
) -> ThrottledKey {
    let Some(named) = ThrottledName::by(request) else { return ThrottledKey::default() };
    let nanoseconds = nanoseconds(now);
    let rest = |command| {
        let instant = service.throttle_counters.instant(command, named.key.as_bytes(), nanoseconds)?;
        Some((command, Ticks::from_micros(instant.abs_diff(nanoseconds).div_ceil(1_000))))
    };
    let is_call = named.command.is_some() && named.askers().next().is_some();
    let passes = match service.engine.operator().overrides(now).of_all() {
        _ if service.engine.operator().blocked(&named.pairs(), now).is_some() => Some(false),
        Some(LimitOverride::Off | LimitOverride::Shadow) => Some(true),
        Some(LimitOverride::Percent(_)) | None => None,
    };
    ThrottledKey { is_call, passes, counted: named.askers().filter_map(rest).collect() }
}

/// Clears the counters of the key that these attributes name, and reports which counters existed.
pub(crate) fn forget<S: Store>(
    service: &Service<S>,
    request: &CheckRequest<'_>,
    now: Timestamp,
) -> ForgottenCalls {
    let mut forgotten = ForgottenCalls::default();
    let Some(named) = ThrottledName::by(request) else { return forgotten };
    for command in named.askers() {
        if service.throttle_counters.forget(command, named.key.as_bytes(), nanoseconds(now)) {
            forgotten.counters += 1;
        } else {
            forgotten.untouched.push(command.command());
        }
    }
    forgotten
}

/// The result of clearing a key's counters of commands whose calls carry their limit.
#[derive(Debug, Default)]
pub(crate) struct ForgottenCalls {
    /// The number of counters that were cleared.
    pub(crate) counters: usize,
    /// Commands that had no counter for the key.
    pub(crate) untouched: Vec<&'static str>,
}

/// The command that the attribute `command` means, if its spelling differs from that of calls.
pub(crate) fn misspelt_command(name: &str, value: &str) -> Option<&'static str> {
    let is_meant =
        |command: &&str| name == COMMAND && command.eq_ignore_ascii_case(value) && *command != value;
    ThrottleCommand::ALL.into_iter().map(ThrottleCommand::command).find(is_meant)
}

/// The state of a key in the commands whose calls carry their limit.
#[derive(Debug, Default)]
pub(crate) struct ThrottledKey {
    /// Whether the attributes are a call of such a command. No limit of the policy applies to such a call.
    pub(crate) is_call: bool,
    /// Whether such a call passes with any limit. `None` if that depends on the limit.
    pub(crate) passes: Option<bool>,
    /// For each matching command that has counted the key, how long until its counter is empty.
    pub(crate) counted: Vec<(ThrottleCommand, Ticks)>,
}

/// A key by its attributes, if they are those of a call and no others.
struct ThrottledName {
    key: String,
    command: Option<String>,
}

impl ThrottledName {
    fn by(request: &CheckRequest<'_>) -> Option<Self> {
        let (mut key, mut command) = (None, None);
        for given in request.attributes() {
            match given.name {
                KEY => key = Some(given.value.to_string()),
                COMMAND => command = Some(given.value.to_string()),
                _ => return None,
            }
        }
        key.map(|key| Self { key, command })
    }

    /// The attributes, as blocks see them.
    fn pairs(&self) -> Vec<(&str, &str)> {
        let command = self.command.iter().map(|command| (COMMAND, command.as_str()));
        std::iter::once((KEY, self.key.as_str())).chain(command).collect()
    }

    /// The matching commands: all of them if none is named.
    fn askers(&self) -> impl Iterator<Item = ThrottleCommand> {
        let is_meant =
            |command: &ThrottleCommand| self.command.as_ref().is_none_or(|name| name == command.command());
        ThrottleCommand::ALL.into_iter().filter(is_meant)
    }
}

/// The instant as the counters keep it.
pub(crate) fn nanoseconds(now: Timestamp) -> i64 {
    i64::try_from(now.unix_micros()).unwrap_or(i64::MAX).saturating_mul(1_000)
}
