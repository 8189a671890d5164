//! The request: the attributes that a caller sends, checked at the edge so that no other module has to check them.

use std::fmt;

use smallvec::SmallVec;

use crate::key::{Prefix, Secret};
use crate::path::without_format;

/// Maximum number of attributes of a request.
pub const ATTRIBUTES_MAX: usize = 64;
/// Longest attribute name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest attribute value, in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Maximum number of descriptors of one request. A request with more is refused.
pub const DESCRIPTORS_MAX: usize = 64;
/// Maximum number of other spellings of one request's values.
pub const SPELLINGS_MAX: usize = 3;
/// Largest cost of one request; a larger one is a mistake, not a request.
pub const COST_MAX: u64 = (1 << 53) - 1;

/// The attribute that has the method of a request.
const METHOD: &str = "method";
/// The attribute whose values may have a loose form.
pub(crate) const PATH: &str = "path";
pub(crate) const GET: &str = "GET";
pub(crate) const HEAD: &str = "HEAD";

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Text, compared byte by byte.
    Text(&'a str),
    /// A whole number, such as a count of tokens.
    Number(i64),
}

impl Value<'_> {
    /// Adds it to a key; a number counts as its decimal text.
    #[inline]
    pub(crate) fn add_to(self, key: &mut Prefix, secret: &Secret) {
        match self {
            Value::Text(text) => key.part(secret, text.as_bytes()),
            Value::Number(number) => add_number(key, secret, number),
        }
    }
}

#[cold]
fn add_number(key: &mut Prefix, secret: &Secret, number: i64) {
    key.part(secret, number.to_string().as_bytes());
}

/// The text as it is; a number in decimal.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Number(number) => number.fmt(f),
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::Text(text)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Value::Text(text)
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Value::Number(number)
    }
}

/// One named value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The name that policies mention.
    pub name: &'a str,
    /// The value that the caller gives.
    pub value: Value<'a>,
}

/// Another spelling of an attribute's value. A condition that holds for it holds for the request, too; limits count by
/// the value. A `path` that comes without one is compared by its loose form as well. A path that comes with itself as
/// another spelling, [`Spelling::AsIs`], is compared as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling<'a> {
    /// Compared as it is, such as a host with its port.
    AsIs(&'a str),
    /// A path in its loose form ([`crate::path::loose_path`]), compared with the loose form of the path in a condition:
    /// it matches if it equals that one, or equals it with a format suffix (`/login.json` for `/login`).
    LoosePath(&'a str),
}

impl<'a> Spelling<'a> {
    pub(crate) const fn text(self) -> &'a str {
        match self {
            Spelling::AsIs(text) | Spelling::LoosePath(text) => text,
        }
    }

    /// Every text to compare where only equality can be tested. The format suffix of a path begins at the first or at
    /// the last dot of its last segment.
    pub(crate) fn texts(self) -> impl Iterator<Item = &'a str> {
        let suffixes = match self {
            Spelling::LoosePath(path) => {
                let mut forms = without_format(path);
                [forms.next(), forms.next_back()]
            }
            Spelling::AsIs(_) => [None, None],
        };
        [Some(self.text())].into_iter().chain(suffixes).flatten()
    }
}

/// Maximum number of texts of one spelling.
pub(crate) const SPELLING_TEXTS_MAX: usize = 3;

/// Why a request was rejected at the edge, before any limit was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// More attributes than [`ATTRIBUTES_MAX`].
    #[error("attributes: more than {ATTRIBUTES_MAX} were given; send only those that the policy mentions")]
    TooManyAttributes,
    /// An attribute name that is empty or longer than [`NAME_BYTES_MAX`].
    #[error("attributes: a name of {bytes} bytes; accepted: 1 to {NAME_BYTES_MAX}")]
    NameLength {
        /// Its length.
        bytes: usize,
    },
    /// A value longer than [`VALUE_BYTES_MAX`].
    #[error("attributes.{name}: a value of {bytes} bytes; accepted: at most {VALUE_BYTES_MAX}")]
    ValueLength {
        /// The name of the attribute.
        name: String,
        /// The length of the value.
        bytes: usize,
    },
    /// One name given twice.
    #[error("attributes.{name}: given twice; give each attribute once")]
    Duplicate {
        /// The name of the attribute.
        name: String,
    },
    /// More other spellings than [`SPELLINGS_MAX`].
    #[error("attributes: more than {SPELLINGS_MAX} other spellings were given")]
    TooManySpellings,
    /// A cost above [`COST_MAX`].
    #[error("cost: {cost} is out of range; accepted: 0 (only look) to {COST_MAX}")]
    Cost {
        /// The cost that was given.
        cost: u64,
    },
}

/// A request: one descriptor or several, each with attributes and a cost. Its attributes and costs are within all
/// bounds.
///
/// ```
/// use tollgate::CheckRequest;
/// let request = CheckRequest::new().with("api_key", "k-42")?.with("tokens", 300)?.cost(2)?;
/// assert_eq!(request.attributes().len(), 2);
/// # Ok::<(), tollgate::RequestError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CheckRequest<'a> {
    first: Descriptor<'a>,
    /// The descriptors after the first, which most requests do not have.
    further: Vec<Descriptor<'a>>,
}

/// One descriptor of a request: attributes and a cost.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    attributes: SmallVec<[Attribute<'a>; 8]>,
    /// Other spellings, each with the index of its attribute.
    spellings: SmallVec<[(u8, Spelling<'a>); SPELLINGS_MAX]>,
    cost: u64,
}

impl Default for CheckRequest<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> CheckRequest<'a> {
    /// A request with one descriptor, of cost 1 and without attributes.
    #[must_use]
    pub fn new() -> Self {
        Self { first: Descriptor::new(), further: Vec::new() }
    }

    /// Adds an attribute to the first descriptor.
    ///
    /// # Errors
    /// When a bound of this module is exceeded or the name was given before; see [`RequestError`].
    pub fn with(mut self, name: &'a str, value: impl Into<Value<'a>>) -> Result<Self, RequestError> {
        self.push(name, value)?;
        Ok(self)
    }

    /// Adds an attribute to the first descriptor, in place.
    ///
    /// # Errors
    /// As [`CheckRequest::with`]; the request is then as it was.
    #[inline]
    pub fn push(&mut self, name: &'a str, value: impl Into<Value<'a>>) -> Result<(), RequestError> {
        self.first.push(name, value.into())
    }

    /// Adds an attribute to the first descriptor, in place, that has another spelling beside its value.
    ///
    /// # Errors
    /// As [`CheckRequest::with`]; the request is then as it was.
    pub fn push_spelled(
        &mut self,
        name: &'a str,
        value: &'a str,
        other: Spelling<'a>,
    ) -> Result<(), RequestError> {
        self.first.push_spelled(name, value, other)
    }

    /// Sets the cost of the first descriptor; 0 only looks.
    ///
    /// # Errors
    /// When the cost exceeds [`COST_MAX`].
    pub fn cost(mut self, cost: u64) -> Result<Self, RequestError> {
        self.set_cost(cost)?;
        Ok(self)
    }

    /// Sets the cost of the first descriptor in place.
    ///
    /// # Errors
    /// As [`CheckRequest::cost`]; the request is then as it was.
    #[inline]
    pub fn set_cost(&mut self, cost: u64) -> Result<(), RequestError> {
        if cost > COST_MAX {
            return Err(RequestError::Cost { cost });
        }
        self.first.cost = cost;
        Ok(())
    }

    /// The same request with a cost of 0 in every descriptor, which only looks.
    #[must_use]
    pub fn looking(mut self) -> Self {
        self.first.cost = 0;
        self.further.iter_mut().for_each(|descriptor| descriptor.cost = 0);
        self
    }

    /// Adds the descriptors of another request. A limit applies to the first descriptor that it matches, and sees no
    /// other. The request is decided as a whole: all limits that apply are charged, or none.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.further.push(other.first);
        self.further.extend(other.further);
        self
    }

    /// The attributes of the first descriptor.
    #[must_use]
    pub fn attributes(&self) -> &[Attribute<'a>] {
        self.first.attributes()
    }

    /// The units that the first descriptor asks for, for limits that do not compute their own cost.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.first.cost
    }

    /// All descriptors, in order.
    #[inline]
    pub fn descriptors(&self) -> impl Iterator<Item = &Descriptor<'a>> + Clone {
        std::iter::once(&self.first).chain(&self.further)
    }

    /// The first descriptor.
    #[must_use]
    #[inline]
    pub const fn first(&self) -> &Descriptor<'a> {
        &self.first
    }

    /// The descriptor with this number, from 0.
    #[inline]
    pub(crate) fn descriptor(&self, number: u8) -> &Descriptor<'a> {
        let further = usize::from(number).checked_sub(1);
        further.and_then(|further| self.further.get(further)).unwrap_or(&self.first)
    }

    /// The number of descriptors.
    #[inline]
    pub(crate) fn descriptor_count(&self) -> usize {
        1 + self.further.len()
    }

    /// The only descriptor; `None` if there are several.
    #[inline]
    pub(crate) fn only(&self) -> Option<&Descriptor<'a>> {
        self.further.is_empty().then_some(&self.first)
    }
}

impl<'a> Descriptor<'a> {
    /// A descriptor of cost 1 without attributes.
    pub(crate) fn new() -> Self {
        Self { attributes: SmallVec::new(), spellings: SmallVec::new(), cost: 1 }
    }

    #[inline]
    pub(crate) fn push(&mut self, name: &'a str, value: Value<'a>) -> Result<(), RequestError> {
        if self.attributes.len() >= ATTRIBUTES_MAX {
            return Err(RequestError::TooManyAttributes);
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(RequestError::NameLength { bytes: name.len() });
        }
        if let Value::Text(text) = value
            && text.len() > VALUE_BYTES_MAX
        {
            return Err(RequestError::ValueLength { name: name.to_owned(), bytes: text.len() });
        }
        if self.attributes.iter().any(|known| known.name == name) {
            return Err(RequestError::Duplicate { name: name.to_owned() });
        }
        if name == METHOD && value == Value::Text(HEAD) {
            self.head();
        }
        self.attributes.push(Attribute { name, value });
        Ok(())
    }

    /// HEAD is a GET without its body, so a condition on GET holds for it too. A client that may not GET could
    /// otherwise use HEAD.
    #[cold]
    fn head(&mut self) {
        if self.spellings.len() < SPELLINGS_MAX {
            let position = u8::try_from(self.attributes.len()).unwrap_or(u8::MAX);
            self.spellings.push((position, Spelling::AsIs(GET)));
        }
    }

    fn push_spelled(
        &mut self,
        name: &'a str,
        value: &'a str,
        other: Spelling<'a>,
    ) -> Result<(), RequestError> {
        if self.spellings.len() >= SPELLINGS_MAX {
            return Err(RequestError::TooManySpellings);
        }
        let bytes = other.text().len();
        if bytes > VALUE_BYTES_MAX {
            return Err(RequestError::ValueLength { name: name.to_owned(), bytes });
        }
        // There are fewer attributes than a `u8` can count.
        let position = u8::try_from(self.attributes.len()).unwrap_or(u8::MAX);
        self.push(name, Value::Text(value))?;
        self.spellings.push((position, other));
        Ok(())
    }

    /// The same descriptor with other values at these indexes.
    pub(crate) fn replaced<'r>(&self, replaced: impl Iterator<Item = (usize, &'r str)>) -> Descriptor<'r>
    where
        'a: 'r,
    {
        let mut attributes: SmallVec<[Attribute<'r>; 8]> = self.attributes.iter().copied().collect();
        for (position, value) in replaced {
            if let Some(attribute) = attributes.get_mut(position) {
                attribute.value = Value::Text(value);
            }
        }
        let spellings = self.spellings.iter().copied().collect();
        Descriptor { attributes, spellings, cost: self.cost }
    }

    /// Adds another spelling of the attribute at an index, up to [`SPELLINGS_MAX`].
    pub(crate) fn add_spelling(&mut self, position: usize, other: Spelling<'a>) {
        if let Ok(position) = u8::try_from(position)
            && self.spellings.len() < SPELLINGS_MAX
        {
            self.spellings.push((position, other));
        }
    }

    /// Its attributes.
    #[must_use]
    pub fn attributes(&self) -> &[Attribute<'a>] {
        &self.attributes
    }

    /// Other spellings, each with the index of its attribute.
    pub(crate) fn spellings(&self) -> &[(u8, Spelling<'a>)] {
        &self.spellings
    }

    /// Names with other spellings of their values.
    pub fn spelled(&self) -> impl Iterator<Item = (&'a str, Spelling<'a>)> {
        self.spellings.iter().filter_map(|(position, spelling)| {
            let attribute = self.attributes.get(usize::from(*position))?;
            Some((attribute.name, *spelling))
        })
    }

    /// Other spellings of the attribute at an index.
    pub(crate) fn spellings_of(&self, position: usize) -> impl Iterator<Item = Spelling<'a>> {
        let is_its = move |of: u8| usize::from(of) == position;
        self.spellings.iter().filter(move |(of, _)| is_its(*of)).map(|(_, spelling)| *spelling)
    }

    /// The units that it asks for, for limits that do not compute their own cost.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.cost
    }
}
