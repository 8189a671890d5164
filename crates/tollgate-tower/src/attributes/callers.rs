//! The callers file: the registered credentials and the attributes of their callers. An unregistered credential is not an
//! identity, because any client can invent one.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tollgate::CredentialDigest;
use tollgate::credential::CREDENTIAL;
use tollgate::policy::Findings;
use tollgate::policy::source::{Entry, Fields, Node, Position, Reading, Report, Tree, quoted, read};
use tollgate::policy::{FILE_BYTES_MAX, ITEMS_MAX, Problem};
use tollgate::request::NAME_BYTES_MAX;

use super::BUILT_IN;

/// Most callers of a file.
pub const CALLERS_MAX: usize = ITEMS_MAX;
/// Largest callers file, in bytes.
pub const CALLERS_BYTES_MAX: usize = FILE_BYTES_MAX;
/// Most attributes of one caller. With those that a config maps, they are fewer than a request may have.
pub const CALLER_ATTRIBUTES_MAX: usize = 16;
/// Longest value of an attribute, in bytes.
pub const CALLER_VALUE_BYTES_MAX: usize = 256;

/// The field that holds a credential as its SHA-256.
const DIGEST: &str = "sha256";
/// The field that holds a credential as it is.
const PLAIN: &str = "key";
const LIST: &str = "`callers:` with a list of callers, which may be empty, as in `callers: []`";
const ENTRY: &str = "a caller such as {sha256: 9f86d081884c7d65..., tenant: acme, plan: pro}, or with key: and the credential itself";

/// A caller of the file: its attributes, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller(Box<[(String, String)]>);

impl Caller {
    /// The value of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Names and values.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// The callers of a file.
#[derive(Default)]
pub struct Callers {
    /// Callers by the digest of their credential. Callers with the same attributes share them.
    registered: HashMap<CredentialDigest, Arc<Caller>>,
    /// Every attribute that some caller has.
    names: BTreeSet<String>,
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callers")
            .field("registered", &self.registered.len())
            .field("names", &self.names)
            .finish()
    }
}

/// One entry of a file, for editors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerEntry {
    /// The digest of its credential.
    pub digest: CredentialDigest,
    /// Its attributes.
    pub caller: Caller,
    /// The line in which it begins, from 1.
    pub line: u32,
}

impl Callers {
    /// Reads a file. Findings call it `name` and never show a credential.
    ///
    /// ```
    /// use tollgate::CredentialDigest;
    /// use tollgate_tower::attributes::callers::Callers;
    /// let callers = Callers::read("callers.yaml", b"callers:\n  - {key: k1, tenant: acme, plan: pro}\n")?;
    /// assert_eq!(callers.find(&CredentialDigest::of("k1")).and_then(|caller| caller.get("plan")), Some("pro"));
    /// assert!(callers.find(&CredentialDigest::of("invented")).is_none());
    /// # Ok::<(), tollgate::policy::Findings>(())
    /// ```
    ///
    /// # Errors
    /// The file has problems. The findings list all of them, each with its line and what would be accepted.
    pub fn read(name: &str, bytes: &[u8]) -> Result<Self, Findings> {
        let mut callers = Self::default();
        let mut shared: HashMap<Caller, Arc<Caller>> = HashMap::new();
        for entry in entries(name, bytes)? {
            callers.names.extend(entry.caller.attributes().map(|(name, _)| name.to_owned()));
            let caller = shared.entry(entry.caller.clone()).or_insert_with(|| Arc::new(entry.caller));
            callers.registered.insert(entry.digest, Arc::clone(caller));
        }
        Ok(callers)
    }

    /// The caller with this credential.
    #[must_use]
    pub fn find(&self, digest: &CredentialDigest) -> Option<&Arc<Caller>> {
        self.registered.get(digest)
    }

    /// Whether some caller has an attribute with this name. Then no request can set it.
    #[must_use]
    pub fn gives(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Every attribute that some caller has.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The number of callers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.registered.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.registered.is_empty()
    }
}

/// The entries of a file, in order.
///
/// # Errors
/// As for [`Callers::read`].
pub fn entries(name: &str, bytes: &[u8]) -> Result<Vec<CallerEntry>, Findings> {
    let mut report = Report::new(name);
    let is_blank = |line: &[u8]| line.trim_ascii().is_empty() || line.trim_ascii().starts_with(b"#");
    if bytes.split(|byte| *byte == b'\n').all(is_blank) {
        // It is more likely truncated than meant to have no callers.
        report.error(Position::default(), "", Problem::new("the file is empty", LIST));
        return Err(report.into_findings());
    }
    let root = read(bytes, Reading::OWN, &mut report);
    let mut found = Vec::new();
    if let Some(root) = root.filter(|_| report.errors() == 0) {
        list(&root, &mut report, &mut found);
    }
    if report.errors() > 0 { Err(report.into_findings()) } else { Ok(found) }
}

fn list(root: &Node, report: &mut Report, found: &mut Vec<CallerEntry>) {
    if matches!(root.tree, Tree::Empty) {
        return;
    }
    let Some(fields) = Fields::of(root, "", LIST, report) else { return };
    fields.only(&["callers"], report);
    let items = match fields.get("callers").map(|node| &node.tree) {
        Some(Tree::List(items)) => items.as_slice(),
        Some(Tree::Empty) => &[],
        _ => return report.error(fields.place("callers"), "callers", Problem::new("is no list", LIST)),
    };
    let mut lines: HashMap<CredentialDigest, u32> = HashMap::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        report.enter(format!("callers[{index}]"), None);
        let Some(entry) = entry(item, report) else { continue };
        if let Some(line) = lines.insert(entry.digest, entry.line) {
            let message = format!("this credential has line {line} already");
            report.error(item.at, "", Problem::new(message, "each credential once"));
        }
        found.push(entry);
    }
    report.leave_limit();
}

fn entry(node: &Node, report: &mut Report) -> Option<CallerEntry> {
    let Tree::Table(fields) = &node.tree else {
        report.error(node.at, "", Problem::new(format!("is {}", node.kind()), ENTRY));
        return None;
    };
    let (mut digest, mut attributes, errors) = (None, Vec::new(), report.errors());
    for field in fields {
        let is_credential = matches!(field.key.as_str(), DIGEST | PLAIN);
        let Tree::Text(text) = &field.node.tree else {
            report.error(
                field.node.at,
                &quoted(&field.key),
                Problem::new(format!("is {}", field.node.kind()), "a text"),
            );
            continue;
        };
        if is_credential && digest.is_some() {
            report.error(field.at, &field.key, Problem::new("a second credential", "one of sha256 and key"));
        } else if is_credential {
            digest = credential(field, text, report);
        } else if let Some(attribute) = attribute(field, text, report) {
            attributes.push(attribute);
        }
    }
    if digest.is_none() && report.errors() == errors {
        report.error(node.at, "", Problem::new("has no credential", ENTRY));
    }
    if attributes.len() > CALLER_ATTRIBUTES_MAX {
        let message = format!("{} attributes", attributes.len());
        report.error(node.at, "", Problem::new(message, format!("at most {CALLER_ATTRIBUTES_MAX}")));
    }
    attributes.sort();
    Some(CallerEntry { digest: digest?, caller: Caller(attributes.into()), line: node.at.line })
}

fn credential(field: &Entry, text: &str, report: &mut Report) -> Option<CredentialDigest> {
    if field.key == PLAIN {
        let digest_beside = CredentialDigest::parse(text)
            .map(|_| Problem::new("is a digest", "the text of a credential; sha256: takes its digest"));
        let problem = credential_problem(text).or(digest_beside);
        let is_right = problem.is_none();
        if let Some(problem) = problem {
            report.error(field.node.at, PLAIN, problem);
        }
        return is_right.then(|| CredentialDigest::of(text));
    }
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    let digest = CredentialDigest::parse(&format!("sha256:{digits}"));
    if digest.is_none() {
        let accepted = "64 hexadecimal digits, as sha256sum prints them, or the first 32; key: takes the credential itself";
        report.error(field.node.at, DIGEST, Problem::new("is no SHA-256", accepted));
    }
    digest
}

/// Why no request can have a credential, which the message does not show.
#[must_use]
pub fn credential_problem(text: &str) -> Option<Problem> {
    let accepted = "the text of a credential, as a request has it";
    if text.is_empty() {
        return Some(Problem::new("is empty", "the text of a credential"));
    }
    if text.trim() != text {
        return Some(Problem::new("has white space around it, which no request has", accepted));
    }
    if text.chars().any(char::is_control) {
        return Some(Problem::new("has a control character, which no request has", accepted));
    }
    let is_spoilt = CredentialDigest::is_spoilt(text);
    is_spoilt.then(|| {
        let accepted = "sha256: and the 64 hexadecimal digits that sha256sum prints, or the first 32 of them";
        Problem::new("begins as a digest and is none", accepted)
    })
}

fn attribute(field: &Entry, text: &str, report: &mut Report) -> Option<(String, String)> {
    let name = field.key.as_str();
    match attribute_problem(name, text) {
        None => Some((name.to_owned(), text.to_owned())),
        Some(problem) => {
            let at: Position = if text.len() > CALLER_VALUE_BYTES_MAX { field.node.at } else { field.at };
            report.error(at, &quoted(name), problem);
            None
        }
    }
}

/// The problem with an attribute of a caller, if there is one.
#[must_use]
pub fn attribute_problem(name: &str, value: &str) -> Option<Problem> {
    if BUILT_IN.contains(&name) || matches!(name, CREDENTIAL | DIGEST | PLAIN) {
        return Some(Problem::new("is read from every request", "another name, such as tenant or plan"));
    }
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let accepted = format!("1 to {NAME_BYTES_MAX} bytes without control characters");
        return Some(Problem::new("cannot be the name of an attribute", accepted));
    }
    if value.is_empty() || value.len() > CALLER_VALUE_BYTES_MAX || value.chars().any(char::is_control) {
        let accepted = format!("1 to {CALLER_VALUE_BYTES_MAX} bytes without control characters");
        return Some(Problem::new(format!("a value of {} bytes", value.len()), accepted));
    }
    None
}

/// The active callers, for readers that outlive a reload. Clones share them.
#[derive(Clone, Default)]
pub struct ActiveCallers(Arc<ArcSwap<Callers>>);

impl fmt::Debug for ActiveCallers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.load().fmt(f)
    }
}

impl ActiveCallers {
    /// Starts with these callers.
    #[must_use]
    pub fn new(callers: Callers) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(callers)))
    }

    /// Replaces the callers for all clones.
    pub fn replace(&self, callers: Callers) {
        self.0.store(Arc::new(callers));
    }

    /// The current callers.
    #[must_use]
    pub fn now(&self) -> Arc<Callers> {
        self.0.load_full()
    }

    /// The caller with this credential.
    #[must_use]
    pub fn find(&self, digest: &CredentialDigest) -> Option<Arc<Caller>> {
        self.0.load().find(digest).map(Arc::clone)
    }

    /// Whether some caller has an attribute with this name.
    #[must_use]
    pub fn gives(&self, name: &str) -> bool {
        self.0.load().gives(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of a file is that of `sha256sum`.
    #[test]
    fn callers_are_found_by_text_and_by_digest() {
        let whole = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // abc
        let text = format!(
            "# ours\ncallers:\n  - {{key: k1, tenant: acme, plan: pro}}\n  - sha256: {whole}\n    plan: 7\n"
        );
        let callers = Callers::read("callers.yaml", text.as_bytes()).unwrap();
        let plan = |key: &str| {
            callers.find(&CredentialDigest::of(key)).and_then(|caller| caller.get("plan").map(str::to_owned))
        };
        assert_eq!(
            (plan("k1").as_deref(), plan("abc").as_deref(), plan("k2")),
            (Some("pro"), Some("7"), None)
        );
        assert!(callers.gives("tenant") && !callers.gives("ip"));
        assert_eq!((callers.len(), format!("{callers:?}").contains("k1")), (2, false));
        for cut in ["", "# nothing\n"] {
            assert!(
                Callers::read("c", cut.as_bytes()).unwrap_err().to_string().contains("the file is empty")
            );
        }
        for empty in ["callers:", "callers: []"] {
            assert!(Callers::read("c", empty.as_bytes()).unwrap().is_empty(), "{empty}");
        }
    }

    /// Every problem has its line, and none shows a credential.
    #[test]
    fn problems_are_reported_without_credentials() {
        let text = "callers:
  - {key: s3cret, tenant: acme}
  - {sha256: s3cret, tenant: acme}
  - {key: s3cret, plan: pro}
  - {tenant: acme}
  - {key: s3cret2, ip: 1.2.3.4}
  - {key: s3cret3, sha256: ab, plan: x}
  - s3cret4
  - {key: s3cret5, plan: [s3cret]}
  - {key: '', plan: a}
  - {key: s3cret6, plan: ''}
  - {key: ' s3cret7', plan: a}
  - {key: \"s3cret\\t8\", plan: a}
  - {key: 'sha256:s3cret9', plan: a}
  - {key: 'sha256:6ab9f1eb8f7d3388f4f9d586f66e99fd', plan: a}
";
        let findings = Callers::read("callers.yaml", text.as_bytes()).unwrap_err().to_string();
        for (line, what) in [
            (3, "is no SHA-256"),
            (4, "has line 2 already"),
            (5, "has no credential"),
            (6, "is read from every request"),
            (7, "a second credential"),
            (8, "is a single value"),
            (9, "is a list"),
            (10, "is empty"),
            (11, "a value of 0 bytes"),
            (12, "white space around it"),
            (13, "a control character"),
            (14, "begins as a digest and is none"),
            (15, "is a digest"),
        ] {
            let position = format!("callers.yaml:{line}:");
            assert!(
                findings.lines().any(|found| found.starts_with(&position) && found.contains(what)),
                "{line}: {findings}"
            );
        }
        assert!(!findings.contains("s3cret"), "{findings}");
    }

    /// A hundred thousand callers fit, and callers with equal attributes share them.
    #[test]
    fn a_hundred_thousand_callers_fit() {
        let mut text = String::from("callers:\n");
        for number in 0..CALLERS_MAX {
            text.push_str(&format!("  - {{sha256: {number:032x}{:032x}, plan: p{}}}\n", 0, number % 3));
        }
        assert!(text.len() < CALLERS_BYTES_MAX);
        let callers = Callers::read("callers.yaml", text.as_bytes()).unwrap();
        assert_eq!(callers.len(), CALLERS_MAX);
        let shared: std::collections::HashSet<_> = callers.registered.values().map(Arc::as_ptr).collect();
        assert_eq!(shared.len(), 3);
    }
}
