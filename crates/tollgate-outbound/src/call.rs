//! A call before it leaves: its attributes, its cost, its priority, and how long it may wait.

use std::time::Duration;

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

/// The value of an attribute of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CallValue {
    Text(String),
    Number(i64),
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
    cost: u64,
    priority: Priority,
    max_wait: Option<Ticks>,
    deadline: Option<Timestamp>,
    is_repeatable: bool,
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
            cost: 1,
            priority: Priority::Normal,
            max_wait: None,
            deadline: None,
            is_repeatable: false,
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

    /// The units that it costs where a limit counts units; 1 by default.
    ///
    /// # Errors
    /// When the cost exceeds [`COST_MAX`](tollgate::request::COST_MAX).
    pub fn cost(mut self, cost: u64) -> Result<Self, RequestError> {
        self.cost = cost;
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
        self.is_repeatable = true;
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

    pub(crate) const fn units(&self) -> u64 {
        self.cost
    }

    pub(crate) const fn urgency(&self) -> Priority {
        self.priority
    }

    pub(crate) const fn wait_max(&self) -> Option<Ticks> {
        self.max_wait
    }

    pub(crate) const fn may_repeat(&self) -> bool {
        self.is_repeatable
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
        let mut request = CheckRequest::new().cost(self.cost)?;
        for (name, value) in &self.attributes {
            match value {
                CallValue::Text(text) => request.push(name, text)?,
                CallValue::Number(number) => request.push(name, *number)?,
            }
        }
        Ok(request)
    }
}
