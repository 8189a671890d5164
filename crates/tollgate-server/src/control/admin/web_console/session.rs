//! The operators that are logged in to the console. A session is a random id in a cookie that scripts cannot read and
//! other sites cannot send. The admin token itself is in no cookie and in no URL, and is not kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::HeaderMap;
use hyper::header::COOKIE;
use subtle::ConstantTimeEq;
use tollgate::{Ticks, Timestamp};

use super::super::token::{AcceptedToken, Role, TokenHolder};
use crate::fleet::NodeKey;
use crate::service::holds::Id;

/// Maximum number of sessions. A further login ends the oldest: an operator must always be able to get in.
const SESSIONS_MAX: usize = 100;
/// How long a session lasts.
const LIFETIME: Ticks = Ticks::from_secs(8 * 3_600);

/// One login.
pub(super) struct ConsoleSession {
    id: Id,
    pub(super) who: TokenHolder,
    /// Comes with every form, so that no page that cannot read this one can send it.
    pub(super) form_token: String,
    /// The key with which this node asks the others.
    key: NodeKey,
    until: Timestamp,
}

impl ConsoleSession {
    pub(super) fn key(&self) -> &NodeKey {
        &self.key
    }

    /// Whether a form has the token of this session.
    pub(super) fn owns_form(&self, form_token: Option<&str>) -> bool {
        form_token.is_some_and(|given| bool::from(self.form_token.as_bytes().ct_eq(given.as_bytes())))
    }
}

/// Whether browsers send the cookie over TLS only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Plain,
    Tls,
}

/// All sessions, oldest first.
pub(super) struct Sessions {
    cookie: String,
    open: Mutex<VecDeque<Arc<ConsoleSession>>>,
}

impl Sessions {
    pub(super) fn new(port: u16) -> Self {
        Self { cookie: format!("tollgate_console_{port}"), open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, VecDeque<Arc<ConsoleSession>>> {
        // No code panics while the lock is held.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session, and returns the header that sets its cookie. `None` if the system has no random bytes.
    pub(super) fn begin(
        &self,
        known: &AcceptedToken,
        transport: Transport,
        now: Timestamp,
    ) -> Option<String> {
        let (id, form_token) = (Id::random()?, Id::random()?.to_string());
        let (who, key) = (known.who.clone(), known.key.clone());
        let session = ConsoleSession { id, who, form_token, key, until: now + LIFETIME };
        let mut open = self.open();
        open.retain(|session| session.until > now);
        while open.len() >= SESSIONS_MAX {
            open.pop_front();
        }
        open.push_back(Arc::new(session));
        Some(self.cookie_header(&id.to_string(), LIFETIME.ceil_seconds(), transport))
    }

    /// The session of a request.
    pub(super) fn of(&self, headers: &HeaderMap, now: Timestamp) -> Option<Arc<ConsoleSession>> {
        let id = self.id_of(headers)?;
        self.open().iter().find(|session| session.id == id && session.until > now).cloned()
    }

    /// The key of the latest session with at least this role, to ask other nodes.
    pub(super) fn key(&self, least: Role, now: Timestamp) -> Option<NodeKey> {
        let open = self.open();
        let mut latest_first = open.iter().rev();
        let session = latest_first.find(|session| session.who.role >= least && session.until > now);
        session.map(|session| session.key.clone())
    }

    /// Whether a session still holds.
    pub(super) fn holds(&self, session: &ConsoleSession, now: Timestamp) -> bool {
        session.until > now && self.open().iter().any(|open| open.id == session.id)
    }

    /// Ends a session, and returns the header that removes its cookie.
    pub(super) fn end(&self, session: &ConsoleSession, transport: Transport) -> String {
        self.open().retain(|open| open.id != session.id);
        self.cookie_header("", 0, transport)
    }

    fn cookie_header(&self, value: &str, seconds: u64, transport: Transport) -> String {
        let secure = match transport {
            Transport::Plain => "",
            Transport::Tls => "; Secure",
        };
        format!(
            "{}={value}; Path=/console; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}",
            self.cookie
        )
    }

    fn id_of(&self, headers: &HeaderMap) -> Option<Id> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(name, _)| *name == self.cookie).find_map(|(_, value)| Id::parse(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    fn who() -> AcceptedToken {
        AcceptedToken::named("otto", Role::Operator)
    }

    fn sent(header: &str) -> HeaderMap {
        let pair = header.split(';').next().unwrap();
        HeaderMap::from_iter([(COOKIE, format!("other=1; {pair}").parse().unwrap())])
    }

    /// A session is found by its cookie until it ends, and every login has ids of its own.
    #[test]
    fn a_session_ends() {
        let sessions = Sessions::new(8_080);
        let header = sessions.begin(&who(), Transport::Tls, NOW).unwrap();
        assert!(
            header.ends_with("; Path=/console; Max-Age=28800; HttpOnly; SameSite=Strict; Secure"),
            "{header}"
        );
        let session = sessions.of(&sent(&header), NOW).unwrap();
        assert!(session.owns_form(Some(&session.form_token)));
        assert!(!session.owns_form(None) && !session.owns_form(Some("")));
        assert!(sessions.of(&sent(&header), NOW + LIFETIME).is_none());
        let other = sessions.begin(&who(), Transport::Plain, NOW).unwrap();
        assert!(!other.contains("Secure") && other != header);
        assert!(sessions.holds(&session, NOW));
        assert!(sessions.end(&session, Transport::Plain).contains("=; Path=/console; Max-Age=0"));
        assert!(sessions.of(&sent(&header), NOW).is_none() && !sessions.holds(&session, NOW));
        assert!(sessions.of(&sent(&other), NOW).is_some());
        assert!(Sessions::new(9_090).of(&sent(&other), NOW).is_none(), "another server's cookie");
    }

    /// However many log in, the number of sessions is bounded, and the newest hold.
    #[test]
    fn sessions_are_bounded() {
        let sessions = Sessions::new(1);
        let headers: Vec<String> =
            (0..SESSIONS_MAX + 1).map(|_| sessions.begin(&who(), Transport::Plain, NOW).unwrap()).collect();
        assert_eq!(sessions.open().len(), SESSIONS_MAX);
        assert!(sessions.of(&sent(&headers[0]), NOW).is_none());
        assert!(headers[1..].iter().all(|header| sessions.of(&sent(header), NOW).is_some()));
    }
}
