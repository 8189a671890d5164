//! A call before it leaves: its attributes, its cost, its priority, and how long it may wait.

use std::time::Duration;

use tollgate::request::COST_MAX;
use tollgate::{CheckRequest, RequestError, Ticks, Timestamp};

/// How urgent a call is. An urgent call passes the others in the queue. A call that has waited longer than the head
/// start of a more urgent one is not passed by it, so no call waits for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// A person waits for it.
    Interactive,
    /// Neither of the others.
    #[default]
    Normal,
    /// Nothing waits for it.
    Batch,
}

impl Priority {
    /// By how much calls of a higher priority may arrive later and still go first.
    pub(crate) const fn handicap(self) -> Ticks {
        match self {
            Priority::Interactive => Ticks::ZERO,
            Priority::Normal => Ticks::from_secs(5),
            Priority::Batch => Ticks::from_secs(30),
        }
    }
}

/// Whether a call may be sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeatable {
    Yes,
    No,
}

/// The value of an attribute of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CallValue {
    Text(String),
    Number(i64),
    /// A number that the response may correct.
    Estimate(i64),
}

/// The cost of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallCost {
    Stated(u64),
    Estimated(u64),
}

impl CallCost {
    const fn units(self) -> u64 {
        match self {
            Self::Stated(units) | Self::Estimated(units) => units,
        }
    }
}

/// The usage that a response reports: the cost of its call, and the numbers that were estimates in its attributes.
///
/// ```
/// use tollgate_outbound::Usage;
/// let usage = Usage::of_cost(420).with("input_tokens", 400).with("max_tokens", 20);
/// assert_eq!(usage.cost(), Some(420));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Usage {
    cost: Option<u64>,
    numbers: Vec<(&'static str, u64)>,
}

impl Usage {
    /// A usage with this cost.
    pub const fn of_cost(cost: u64) -> Self {
        Self { cost: Some(cost), numbers: Vec::new() }
    }

    /// Adds the actual value of an attribute that was an estimate.
    pub fn with(mut self, name: &'static str, value: u64) -> Self {
        self.numbers.push((name, value));
        self
    }

    /// The actual cost, if it is known.
    #[must_use]
    pub const fn cost(&self) -> Option<u64> {
        self.cost
    }

    /// Whether it says nothing about attributes.
    pub(crate) const fn is_cost_alone(&self) -> bool {
        self.numbers.is_empty()
    }
}

/// A call to another party's API, before it leaves.
///
/// ```
/// use std::time::Duration;
/// use tollgate_outbound::{Call, Priority};
/// let call = Call::to("api.example.com")
///     .with("api_key", "k-42")?
///     .cost(300)?
///     .priority(Priority::Interactive)
///     .max_wait(Duration::from_secs(2));
/// assert_eq!(call.text("host"), Some("api.example.com"));
/// # Ok::<(), tollgate::RequestError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Call {
    attributes: Vec<(String, CallValue)>,
    cost: CallCost,
    priority: Priority,
    max_wait: Option<Ticks>,
    deadline: Option<Timestamp>,
    repeatable: Repeatable,
}

impl Default for Call {
    fn default() -> Self {
        Self::new()
    }
}

impl Call {
    /// The attribute that has the host of a call.
    pub const HOST: &'static str = "host";
    /// The attribute that has the route of a call: its method and the template of its path.
    pub const ROUTE: &'static str = "route";
    /// The attribute that has the resource which a server counts apart in each bucket that it names, such as the channel
    /// of a call to Discord.
    pub const SCOPE: &'static str = "scope";

    /// A call of cost 1 without a host. A layer takes the host from the request.
    pub const fn new() -> Self {
        Self {
            attributes: Vec::new(),
            cost: CallCost::Stated(1),
            priority: Priority::Normal,
            max_wait: None,
            deadline: None,
            repeatable: Repeatable::No,
        }
    }

    /// A call to a host, of cost 1. A host that is longer than an attribute may be is cut.
    pub fn to(host: &str) -> Self {
        let end = host.floor_char_boundary(tollgate::request::VALUE_BYTES_MAX);
        let host = CallValue::Text(host.get(..end).unwrap_or_default().to_owned());
        Self { attributes: vec![(Self::HOST.to_owned(), host)], ..Self::new() }
    }

    /// Adds an attribute that limits may count by.
    ///
    /// # Errors
    /// When the name was given before, or a bound of [`CheckRequest`] is exceeded.
    pub fn with(self, name: &str, value: impl Into<String>) -> Result<Self, RequestError> {
        self.push(name, CallValue::Text(value.into()))
    }

    /// Adds an attribute that is a number, such as an estimate of tokens.
    ///
    /// # Errors
    /// As [`Call::with`].
    pub fn with_number(self, name: &str, value: i64) -> Result<Self, RequestError> {
        self.push(name, CallValue::Number(value))
    }

    /// Adds an attribute that estimates what the call will use, such as its tokens. A limit that never admits so much at
    /// once counts what it admits, because an estimate must not refuse a call for ever. [`Usage`] corrects it.
    ///
    /// # Errors
    /// As [`Call::with`].
    pub fn with_estimate(self, name: &str, value: u64) -> Result<Self, RequestError> {
        self.push(name, CallValue::Estimate(attribute(value)))
    }

    /// The units that it will probably cost, by an estimate as that of [`Call::with_estimate`].
    ///
    /// # Errors
    /// When the cost exceeds [`COST_MAX`](tollgate::request::COST_MAX).
    pub fn estimated_cost(mut self, cost: u64) -> Result<Self, RequestError> {
        self.cost = CallCost::Estimated(cost);
        self.request().map(drop)?;
        Ok(self)
    }

    /// The units that it costs where a limit counts units; 1 by default.
    ///
    /// # Errors
    /// When the cost exceeds [`COST_MAX`](tollgate::request::COST_MAX).
    pub fn cost(mut self, cost: u64) -> Result<Self, RequestError> {
        self.cost = CallCost::Stated(cost);
        self.request().map(drop)?;
        Ok(self)
    }

    /// How urgent it is.
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// How long it may wait before it leaves. A call that would have to wait longer is refused at once.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(Ticks::ceil_from(wait));
        self
    }

    /// When its response is no longer needed. The call does not leave after it, and the layer ends an attempt at it.
    pub const fn deadline(mut self, at: Timestamp) -> Self {
        self.deadline = Some(at);
        self
    }

    /// The server may execute it twice, so that it is attempted again after a failure. A layer knows this of idempotent
    /// methods and of requests with an `Idempotency-Key`; those of gRPC are all `POST`.
    pub const fn repeatable(mut self) -> Self {
        self.repeatable = Repeatable::Yes;
        self
    }

    /// The text of an attribute.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find_map(|(known, value)| match value {
            CallValue::Text(text) if known == name => Some(text.as_str()),
            _ => None,
        })
    }

    /// The number of an attribute.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        self.attributes.iter().find_map(|(known, value)| match value {
            CallValue::Number(number) | CallValue::Estimate(number) if known == name => Some(*number),
            _ => None,
        })
    }

    pub(crate) const fn units(&self) -> u64 {
        self.cost.units()
    }

    /// The call with its smallest estimate above a capacity lowered to it; `None` if there is none.
    pub(crate) fn fitted(&self, capacity: u64) -> Option<Self> {
        let mut fitted = self.clone();
        let estimates = fitted.attributes.iter_mut().filter_map(|(_, value)| match value {
            CallValue::Estimate(number) => Some(number),
            CallValue::Text(_) | CallValue::Number(_) => None,
        });
        let most = attribute(capacity);
        let lowered = estimates.filter(|number| **number > most).min();
        match (lowered, self.cost) {
            _ if capacity == 0 => return None,
            // Of a sum and its parts, the parts are lowered first.
            (Some(number), _) => *number = most,
            (None, CallCost::Estimated(units)) if units > capacity => {
                fitted.cost = CallCost::Estimated(capacity);
            }
            (None, _) => return None,
        }
        Some(fitted)
    }

    /// The call as it turned out to be.
    pub(crate) fn as_used(&self, usage: &Usage) -> Self {
        let mut used = self.clone();
        for (name, value) in &mut used.attributes {
            let actual = usage.numbers.iter().find(|(known, _)| *known == name.as_str());
            if let (CallValue::Estimate(number), Some(&(_, actual))) = (value, actual) {
                *number = attribute(actual);
            }
        }
        if let Some(cost) = usage.cost {
            used.cost = CallCost::Stated(cost.min(COST_MAX));
        }
        used
    }

    pub(crate) const fn urgency(&self) -> Priority {
        self.priority
    }

    pub(crate) const fn wait_max(&self) -> Option<Ticks> {
        self.max_wait
    }

    pub(crate) const fn may_repeat(&self) -> Repeatable {
        self.repeatable
    }

    pub(crate) const fn deadline_at(&self) -> Option<Timestamp> {
        self.deadline
    }

    fn push(mut self, name: &str, value: CallValue) -> Result<Self, RequestError> {
        self.attributes.push((name.to_owned(), value));
        self.request().map(drop)?;
        Ok(self)
    }

    /// The question to the engine.
    pub(crate) fn request(&self) -> Result<CheckRequest<'_>, RequestError> {
        let mut request = CheckRequest::new().cost(self.cost.units())?;
        for (name, value) in &self.attributes {
            match value {
                CallValue::Text(text) => request.push(name, text)?,
                CallValue::Number(number) | CallValue::Estimate(number) => request.push(name, *number)?,
            }
        }
        Ok(request)
    }
}

/// An attribute of this value. No limit counts more than the largest cost.
fn attribute(value: u64) -> i64 {
    i64::try_from(value.min(COST_MAX)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest estimate above the capacity is lowered, then the next, and what is stated is not.
    #[test]
    fn estimates_are_lowered_one_by_one() {
        let call = Call::new().with_number("size", 90).unwrap().with_estimate("input", 40).unwrap();
        let call = call.with_estimate("output", 20).unwrap().estimated_cost(60).unwrap();
        let numbers = |call: &Call| {
            let number = |(_, value): &(String, CallValue)| match value {
                CallValue::Number(number) | CallValue::Estimate(number) => *number,
                CallValue::Text(_) => 0,
            };
            (call.attributes.iter().map(number).collect::<Vec<_>>(), call.units())
        };
        let mut lowered = Vec::new();
        let mut next = call.fitted(10);
        while let Some(call) = next {
            lowered.push(numbers(&call));
            next = call.fitted(10);
        }
        let expected = [(vec![90, 40, 10], 60), (vec![90, 10, 10], 60), (vec![90, 10, 10], 10)];
        assert_eq!(lowered, expected);
        assert!(call.fitted(60).is_none() && call.fitted(0).is_none());
        assert!(Call::new().cost(9).unwrap().fitted(5).is_none());
    }
}
