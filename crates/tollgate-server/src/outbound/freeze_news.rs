//! Logs when a provider's bucket is frozen for long, once for each freeze: whose words, and until when.

use std::collections::HashMap;

use tollgate::time::WallOffset;
use tollgate::{Ticks, Timestamp};
use tollgate_outbound::{Freeze, FreezeCause};

use super::provider::Provider;
use crate::time_text::rfc3339;

/// The freezes that the log has: of each provider, the buckets and the ends.
#[derive(Default)]
pub(super) struct FreezeNews(HashMap<&'static str, HashMap<String, Timestamp>>);

impl FreezeNews {
    /// Writes the long freezes that are new.
    pub(super) fn tell(&mut self, provider: &Provider) {
        let now = provider.outbound.engine().now();
        let max_wait = Ticks::ceil_from(provider.plan.max_wait);
        let before = self.0.remove(provider.label).unwrap_or_default();
        let logged = self.0.entry(provider.label).or_default();
        for bucket in provider.freezes() {
            let Some(freeze) = bucket.frozen.filter(|freeze| is_long(freeze, max_wait, now)) else {
                continue;
            };
            // Credentials have buckets of the same name. A freeze of another process comes again, and a little longer.
            let known = before.get(&bucket.name).max(logged.get(&bucket.name)).copied().unwrap_or_default();
            if known + max_wait < freeze.until {
                tracing::warn!(
                    provider = provider.label,
                    bucket = bucket.name,
                    "{}",
                    news(provider.label, &freeze)
                );
            }
            logged.insert(bucket.name, known.max(freeze.until));
        }
    }
}

/// Whether calls are refused because of it that do not say how long they wait.
fn is_long(freeze: &Freeze, max_wait: Ticks, now: Timestamp) -> bool {
    match freeze.cause {
        FreezeCause::Throttled(kind) => kind.is_long() || freeze.until.since(now) > max_wait,
        FreezeCause::Failing(_) => false,
    }
}

fn news(provider: &str, freeze: &Freeze) -> String {
    let (until, cure) = (rfc3339(freeze.until, WallOffset::NONE), "POST /admin/v1/outbound/thaw ends this");
    match freeze.statement {
        Some(statement) => format!(
            "{provider} refused a call at {} and said Retry-After: {}; no call is sent until {until}; {cure}",
            rfc3339(statement.at, WallOffset::NONE),
            statement.wait.ceil_seconds()
        ),
        None => format!("{provider} refused a call; no call is sent until {until}; {cure}"),
    }
}
