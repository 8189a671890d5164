//! Operators: tokens, stored as digests and compared in constant time, each with a name and a role. No type here has a
//! `Debug` that could show one.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use serde::Serialize;
use subtle::ConstantTimeEq;

use crate::disk;
use crate::fleet::{AskedFor, NodeKey, NodeSignature, TokenOrigin};

/// Minimum and maximum length of a chosen token, in characters.
const TOKEN_CHARS: (usize, usize) = (16, 256);
/// Random bytes of a generated token.
const RANDOM_BYTES: usize = 32;
/// Maximum number of tokens in a file, its maximum size, and the maximum length of a name in it.
const TOKENS_MAX: usize = 1_000;
const FILE_BYTES_MAX: u64 = 256 << 10;
const NAME_CHARS_MAX: usize = 64;
/// The audit log's name for the holder of the token that the server generated or the environment set.
const OWNER: &str = "owner";

/// The rights of an operator. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// Read.
    Viewer,
    /// Change the decisions of one limit or key.
    Operator,
    /// Change all limits together, and read the audit log.
    Admin,
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

impl FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let roles = [Role::Viewer, Role::Operator, Role::Admin];
        let found = roles.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| format!("unknown role {text:?}; accepted: viewer, operator or admin"))
    }
}

/// A token in plain text.
#[derive(Clone, PartialEq, Eq)]
pub struct GivenToken(String);

impl fmt::Debug for GivenToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenToken(…)")
    }
}

impl FromStr for GivenToken {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let is_long = (TOKEN_CHARS.0..=TOKEN_CHARS.1).contains(&text.len());
        if is_long && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Self(text.to_owned()));
        }
        let (least, most) = TOKEN_CHARS;
        Err(format!(
            "not a token; accepted: {least} to {most} visible characters, such as `openssl rand -hex 32` makes"
        ))
    }
}

impl GivenToken {
    /// Generates an unguessable token.
    ///
    /// # Errors
    /// When the system has no random bytes.
    fn random() -> Result<Self, String> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| {
            format!("no random numbers for the admin token: {}", disk::plain_cause(&error))
        })?;
        let mut text = String::from("tg_");
        for byte in bytes {
            text.push_str(&format!("{byte:02x}"));
        }
        Ok(Self(text))
    }

    /// The text, for a header or for the single occasion on which it is shown.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Reads the token that a server wrote to a file.
    ///
    /// # Errors
    /// When there is none. The message says what to do.
    pub(crate) fn from_file(path: &Path) -> Result<Self, String> {
        let text = bounded(path)?;
        text.trim().parse().map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The holder of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenHolder {
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// A token that the server knows, without its text.
pub(super) struct AcceptedToken {
    pub(super) who: TokenHolder,
    /// The key by which nodes recognise each other.
    pub(super) key: NodeKey,
    digest: [u8; 32],
}

impl AcceptedToken {
    fn new(who: TokenHolder, token: &GivenToken) -> Self {
        Self { who, key: NodeKey::of(token.reveal()), digest: hashed(token.reveal()) }
    }

    /// A token of an operator with this name.
    #[cfg(test)]
    pub(super) fn named(name: &str, role: Role) -> Self {
        Self::new(TokenHolder { name: name.to_owned(), role }, &GivenToken(name.repeat(8)))
    }
}

/// All accepted tokens.
pub(crate) struct Tokens(Vec<AcceptedToken>);

impl Tokens {
    /// The token, if it is known.
    pub(super) fn known(&self, token: &str) -> Option<&AcceptedToken> {
        let given = hashed(token);
        self.find(|known| known.digest.ct_eq(&given).into())
    }

    /// The token with which another node signed its question, if it is known.
    pub(super) fn signer(&self, question: &NodeSignature, asked: AskedFor<'_>) -> Option<&AcceptedToken> {
        self.find(|known| question.is_signed(&known.key, asked))
    }

    /// Compares all tokens even after a match, so that the time reveals nothing.
    fn find(&self, is_meant: impl Fn(&AcceptedToken) -> bool) -> Option<&AcceptedToken> {
        let mut found = None;
        for known in &self.0 {
            if is_meant(known) {
                found = Some(known);
            }
        }
        found
    }
}

fn hashed(token: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (byte, hashed) in bytes.iter_mut().zip(digest(&SHA256, token.as_bytes()).as_ref()) {
        *byte = *hashed;
    }
    bytes
}

/// The tokens of a server, and the notice about them at the start.
pub(crate) struct Credentials {
    pub(crate) tokens: Tokens,
    /// The text for the banner. It contains the token itself only if the token is written nowhere else.
    pub(crate) notice: String,
    /// The token with the role admin, where it is in no file of its own, and its file.
    pub(crate) token: Option<GivenToken>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) origin: TokenOrigin,
}

/// Configures the accepted tokens.
#[derive(Debug)]
pub(crate) struct TokenSettings {
    /// The token with the role admin, if it is chosen.
    pub(crate) token: Option<GivenToken>,
    /// The file for that token, which is then not shown.
    pub(crate) token_file: Option<PathBuf>,
    /// A file with more tokens.
    pub(crate) tokens: Option<PathBuf>,
}

/// Checks the file with tokens, if there is one, before anything is opened.
///
/// # Errors
/// As [`credentials`].
pub(crate) fn check_token_list(settings: &TokenSettings) -> Result<(), String> {
    settings.tokens.as_deref().map_or(Ok(()), |path| listed(path).map(drop))
}

/// The tokens that the settings name. One is generated if they name none.
///
/// # Errors
/// When a file cannot be read or written, or has the wrong content. The message says what would be accepted.
pub(crate) fn credentials(settings: &TokenSettings) -> Result<Credentials, String> {
    let mut known = Vec::new();
    let mut notices = Vec::new();
    if let Some(path) = &settings.tokens {
        known = listed(path)?;
        notices.push(format!("{} tokens of {}", known.len(), path.display()));
    }
    let owner = match &settings.token {
        Some(token) => {
            notices.push("the token of TOLLGATE_ADMIN_TOKEN".to_owned());
            Some(token.clone())
        }
        None if known.is_empty() || settings.token_file.is_some() => {
            let token = GivenToken::random()?;
            if settings.token_file.is_none() {
                notices.push(format!("token {}", token.reveal()));
            }
            Some(token)
        }
        None => None,
    };
    if let (Some(path), Some(token)) = (&settings.token_file, &owner) {
        write(path, token)?;
        notices.push(format!("the token in {}", path.display()));
    }
    let token = owner.clone().filter(|_| settings.token_file.is_none());
    let token_file =
        settings.token_file.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    if let Some(token) = owner {
        let who = TokenHolder { name: OWNER.to_owned(), role: Role::Admin };
        let owner = AcceptedToken::new(who, &token);
        if let Some(other) = known.iter().find(|other| other.digest == owner.digest) {
            let name = &other.who.name;
            return Err(format!(
                "the token of the owner is also that of {name:?} in --admin-tokens; give each its own"
            ));
        }
        known.push(owner);
    }
    let is_given = settings.token.is_some() || settings.tokens.is_some();
    let origin = if is_given { TokenOrigin::Given } else { TokenOrigin::Made };
    Ok(Credentials { tokens: Tokens(known), notice: notices.join(" and "), token, token_file, origin })
}

/// Writes a token to a file that only this user can read. A file that others could read is replaced, not kept.
fn write(path: &Path, token: &GivenToken) -> Result<(), String> {
    let failed = |error: std::io::Error| {
        format!(
            "{}: the admin token cannot be written: {}; name another file with --admin-token-file",
            path.display(),
            disk::plain_cause(&error)
        )
    };
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    writeln!(file, "{}", token.reveal()).map_err(failed)
}

/// Reads the tokens of a file: a role, a name and a token on each line.
fn listed(path: &Path) -> Result<Vec<AcceptedToken>, String> {
    let text = bounded(path)?;
    let mut known: Vec<AcceptedToken> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let read = one(line).map_err(|error| format!("{}:{number}: {error}", path.display()))?;
        if known.iter().any(|other| other.who.name == read.who.name || other.digest == read.digest) {
            let name = &read.who.name;
            return Err(format!(
                "{}:{number}: the name {name:?} or its token is there twice; give each its own",
                path.display()
            ));
        }
        known.push(read);
        if known.len() > TOKENS_MAX {
            return Err(format!("{}: more than {TOKENS_MAX} tokens", path.display()));
        }
    }
    if known.is_empty() {
        return Err(format!("{}: no token; accepted: lines such as: operator alice TOKEN", path.display()));
    }
    Ok(known)
}

/// Reads one line of the file. An error never echoes the token.
fn one(line: &str) -> Result<AcceptedToken, String> {
    let mut words = line.split_ascii_whitespace();
    let (Some(role), Some(name), Some(token), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("accepted: a role, a name and a token, such as: operator alice TOKEN".to_owned());
    };
    let role = role.parse()?;
    if name.chars().count() > NAME_CHARS_MAX || name.chars().any(char::is_control) {
        return Err(format!("a name has at most {NAME_CHARS_MAX} visible characters"));
    }
    let token: GivenToken = token.parse()?;
    Ok(AcceptedToken::new(TokenHolder { name: name.to_owned(), role }, &token))
}

fn bounded(path: &Path) -> Result<String, String> {
    let name = path.display();
    let bytes = disk::read(path, FILE_BYTES_MAX).map_err(|error| disk::unreadable(path, &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name}: more than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| format!("{name}: not UTF-8; name a file that can be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    /// A line is a role, a name and a token. An error names what is wrong, but never the token.
    #[test]
    fn lines_of_a_token_file() {
        let known = one(&format!("operator alice {TOKEN}")).ok().unwrap();
        assert_eq!(known.who, TokenHolder { name: "alice".into(), role: Role::Operator });
        let tokens = Tokens(vec![known]);
        assert_eq!(tokens.known(TOKEN).unwrap().who.name, "alice");
        for other in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"] {
            assert!(tokens.known(other).is_none(), "{other}");
        }
        for wrong in ["root alice T", "operator alice", "operator alice short", "operator a b c d"] {
            let error = one(wrong).err().unwrap();
            assert!(error.contains("accepted"), "{wrong}: {error}");
        }
        let error = one(&format!("root alice {TOKEN}")).err().unwrap();
        assert!(!error.contains(TOKEN), "{error}");
    }

    /// The `Debug` output of a token does not show it.
    #[test]
    fn a_token_has_no_debug() {
        let token: GivenToken = TOKEN.parse().unwrap();
        assert!(!format!("{token:?}").contains("0123"));
        assert_ne!(GivenToken::random().unwrap().reveal(), GivenToken::random().unwrap().reveal());
    }

    /// The story: the owner's token could be that of a viewer in the file, and then that viewer was the owner. It may be
    /// no other holder's token, and the refusal does not echo it.
    #[test]
    fn the_owner_shares_no_token() {
        let scratch = tollgate_testkit::Scratch::new();
        let tokens = Some(scratch.write("tokens", &format!("viewer bob {TOKEN}\n")));
        let settings = |token: &str| TokenSettings {
            token: Some(token.parse().unwrap()),
            token_file: None,
            tokens: tokens.clone(),
        };
        let error = credentials(&settings(TOKEN)).err().unwrap();
        assert!(error.contains("also that of \"bob\"") && !error.contains(TOKEN), "{error}");
        let other = "fedcba9876543210";
        let Credentials { tokens, .. } = credentials(&settings(other)).ok().unwrap();
        let holder = |token: &str| tokens.known(token).map(|known| known.who.clone()).unwrap();
        assert_eq!(holder(TOKEN), TokenHolder { name: "bob".into(), role: Role::Viewer });
        assert_eq!(holder(other), TokenHolder { name: OWNER.into(), role: Role::Admin });
    }
}
