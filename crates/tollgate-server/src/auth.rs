//! The token by which clients prove that they may ask. Every protocol uses this module, and nothing else compares
//! tokens.

use std::path::Path;

use ring::hmac::{self, HMAC_SHA256, Key, Tag};

use crate::disk;

/// The environment variable for the token. There is no flag for it, because command lines are visible to all users of a
/// machine.
const TOKEN_VARIABLE: &str = "TOLLGATE_AUTH_TOKEN";
/// Minimum and maximum length of a token, in bytes.
const TOKEN_BYTES: (usize, usize) = (16, 1_024);
/// The scheme before the token in an `Authorization` header.
const SCHEME: &[u8] = b"bearer ";

/// Which clients may ask.
#[derive(Default)]
pub(crate) enum Auth {
    /// Any client that can connect.
    #[default]
    Open,
    /// Any client with the token. Only its keyed hash is stored, so that a comparison takes the same time for every
    /// value.
    Token { key: Box<Key>, tag: Tag },
}

impl Auth {
    /// The setting of the file, or else of the environment.
    ///
    /// # Errors
    /// When a token cannot be read or used. The message never contains it.
    pub(crate) fn from(file: Option<&Path>) -> Result<Self, String> {
        let text = match file {
            Some(path) => read(path)?,
            None => match std::env::var_os(TOKEN_VARIABLE) {
                Some(token) => token.into_encoded_bytes(),
                None => return Ok(Self::Open),
            },
        };
        let name = file.map_or_else(|| TOKEN_VARIABLE.to_owned(), |path| path.display().to_string());
        Self::token(text.trim_ascii()).map_err(|error| format!("{name}: {error}"))
    }

    /// Admits clients with this token.
    fn token(token: &[u8]) -> Result<Self, String> {
        let (least, most) = TOKEN_BYTES;
        if token.len() < least || token.len() > most || !token.iter().all(u8::is_ascii_graphic) {
            return Err(format!(
                "not a token; accepted: {least} to {most} visible ASCII characters without spaces, such as \
                 `openssl rand -hex 32` prints"
            ));
        }
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)
            .map_err(|error| format!("the system gives no random numbers: {}", disk::plain_cause(&error)))?;
        let key = Box::new(Key::new(HMAC_SHA256, &secret));
        let tag = hmac::sign(&key, token);
        Ok(Self::Token { key, tag })
    }

    /// Whether a token is required.
    pub(crate) const fn is_required(&self) -> bool {
        matches!(self, Auth::Token { .. })
    }

    /// Whether a client with this token may ask. The token usually is the argument of RESP's `AUTH`. The check takes
    /// the same time for every token of one length.
    pub(crate) fn admits_token(&self, token: &[u8]) -> bool {
        match self {
            Auth::Open => true,
            Auth::Token { key, tag } => {
                token.len() <= TOKEN_BYTES.1 && hmac::verify(key, token, tag.as_ref()).is_ok()
            }
        }
    }

    /// Whether a client with this `Authorization` header may ask, in HTTP or in gRPC metadata: `Bearer TOKEN`.
    pub(crate) fn admits_header(&self, value: Option<&[u8]>) -> bool {
        match (self, value) {
            (Auth::Open, _) => true,
            (_, None) => false,
            (_, Some(value)) => {
                let scheme = value.get(..SCHEME.len());
                let token = value.get(SCHEME.len()..).unwrap_or_default().trim_ascii();
                scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME)) && self.admits_token(token)
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let most = u64::try_from(TOKEN_BYTES.1).unwrap_or(u64::MAX).saturating_add(1);
    disk::read(path, most).map_err(|error| {
        let (cause, cure) = disk::refusal(&error);
        format!("{}: {cause}; {cure} (--auth-token-file names a file with the token in it)", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    /// The token is admitted, and nothing that only resembles it.
    #[test]
    fn only_the_token() {
        let auth = Auth::token(TOKEN.as_bytes()).unwrap();
        assert!(auth.is_required() && auth.admits_token(TOKEN.as_bytes()));
        let upper = TOKEN.to_uppercase();
        let longer = format!("{TOKEN}0");
        let long = "a".repeat(1 << 20);
        for wrong in ["", &TOKEN[1..], &TOKEN[..31], &longer, &upper, &long] {
            assert!(!auth.admits_token(wrong.as_bytes()));
        }
    }

    /// A header has the scheme, in any case, and the token.
    #[test]
    fn headers() {
        let auth = Auth::token(TOKEN.as_bytes()).unwrap();
        let admits = |value: &str| auth.admits_header(Some(value.as_bytes()));
        assert!(admits(&format!("Bearer {TOKEN}")) && admits(&format!("bearer  {TOKEN} ")));
        for wrong in
            [TOKEN.to_owned(), format!("Basic {TOKEN}"), format!("Bearer{TOKEN}"), "Bearer".to_owned()]
        {
            assert!(!admits(&wrong), "{wrong}");
        }
        assert!(!auth.admits_header(None));
    }

    /// If no token is configured, no client needs one.
    #[test]
    fn open() {
        assert!(!Auth::Open.is_required() && Auth::Open.admits_header(None) && Auth::Open.admits_token(b"x"));
    }

    /// A file may end in a newline. A guessable token, or one that no header can carry, is refused, and the error does
    /// not echo it.
    #[test]
    fn tokens_are_checked() {
        let scratch = tollgate_testkit::Scratch::new();
        let path = scratch.write("token", &format!("{TOKEN}\n"));
        assert!(Auth::from(Some(&path)).unwrap().admits_token(TOKEN.as_bytes()));
        for wrong in
            ["", "short", "sixteen and more, with spaces", "ünïcödé-ünïcödé-ünïcödé", &"x".repeat(1_025)]
        {
            let path = scratch.write("token", wrong);
            let error = Auth::from(Some(&path)).err().unwrap();
            assert!(error.contains("openssl rand -hex 32"), "{error}");
            assert!(wrong.is_empty() || !error.contains(wrong));
        }
        assert!(
            Auth::from(Some(&scratch.path("none"))).is_err_and(|error| error.contains("--auth-token-file"))
        );
    }
}
