//! Parameters of a query. A spelling that only some frameworks read as a parameter is refused.

use std::borrow::Cow;

use super::Unreadable;
use crate::spelling::parameter::{form_text, is_named, is_read_as, of_path, pieces};

/// Most parameters of a query that limits look at. Express and PHP read the first 1,000, so a later one would be read here alone.
const PARAMETERS_MAX: usize = 500;

/// Where servers find parameters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Query<'q> {
    pub(super) text: &'q str,
    /// The part after the first semicolon of the path, which Fastify takes for the query.
    pub(super) path_parameters: &'q str,
}

impl<'q> Query<'q> {
    /// The query of a target, with its path as the request has it.
    pub(super) fn of(path: Option<&'q str>, text: &'q str) -> Self {
        Self { text, path_parameters: path.map_or("", of_path) }
    }
}

fn too_many() -> Unreadable {
    Unreadable(format!("query: more than {PARAMETERS_MAX} parameters; accepted: at most that many"))
}

/// A parameter that limits use. It must be given at most once, in the spelling that all frameworks read.
///
/// # Errors
/// It is given twice, or in a spelling that only some frameworks read as this parameter: after a semicolon, with brackets,
/// in another case, or with an invalid escape.
pub(super) fn attribute<'q>(query: Query<'q>, wanted: &str) -> Result<Option<Cow<'q, str>>, Unreadable> {
    let refused = |what: &str| {
        let accepted =
            "accepted: once, as NAME=VALUE, with & between parameters and %3B for a semicolon in a value";
        Unreadable(format!("query parameter {wanted}: {what}; {accepted}"))
    };
    if is_named(query.path_parameters, wanted) {
        return Err(refused("behind a semicolon of the path, where some servers find it"));
    }
    if pieces(query.text).nth(PARAMETERS_MAX).is_some() {
        return Err(too_many());
    }
    let mut found = None;
    for piece in pieces(query.text) {
        let Some(name) = form_text(piece.name) else {
            return Err(Unreadable(format!(
                "query: a name beside {wanted} has an escape that is none, or is not UTF-8; accepted: % with two digits, in UTF-8"
            )));
        };
        if !is_read_as(&name, wanted) {
            continue;
        }
        if name != wanted || piece.place > 0 || piece.is_cut {
            return Err(refused("in a spelling that frameworks read differently"));
        }
        let value = form_text(piece.value).ok_or_else(|| refused("not text in UTF-8"))?;
        if found.replace(value).is_some() {
            return Err(refused("given more than once"));
        }
    }
    Ok(found)
}

/// A parameter that may be given once. The caller has already refused ambiguous spellings.
#[cfg(feature = "graphql")]
pub(crate) fn parameter<'q>(query: &'q str, wanted: &str) -> Result<Option<Cow<'q, str>>, Unreadable> {
    if query.split('&').nth(PARAMETERS_MAX).is_some() {
        return Err(too_many());
    }
    let mut found = None;
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // An invalid name is not the wanted one.
        if form_text(name).is_none_or(|name| name != wanted) {
            continue;
        }
        let Some(value) = form_text(value) else {
            return Err(Unreadable(format!("query parameter {wanted}: not text in UTF-8")));
        };
        if found.replace(value).is_some() {
            return Err(Unreadable(format!("query parameter {wanted}: given more than once; send it once")));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute<'q>(query: &'q str, wanted: &str) -> Result<Option<Cow<'q, str>>, Unreadable> {
        super::attribute(Query::of(Some("/a"), query), wanted)
    }

    /// Parameters are decoded as in forms. Duplicates and bytes that are not text are refused.
    #[test]
    fn a_parameter_has_one_value() {
        let read = |text| attribute(text, "a b").map(|found| found.map(Cow::into_owned));
        assert_eq!(read("x=1&a+b=%C3%A9+%2B&y"), Ok(Some("é +".to_owned())));
        assert_eq!(read("a%20b"), Ok(Some(String::new())));
        assert_eq!(read("ab=1&=&x;y=2"), Ok(None));
        for wrong in ["a+b=1&a%20b=2", "a+b=%ff", "a+b=%", "a+b=%4", "a+b=1&a+b=1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    /// Spellings that some framework reads as `v` or as `user_id`, and spellings that none does.
    #[test]
    fn other_spellings_are_refused() {
        let refused = "v[]=1 v[0]=1 v[x]=1 v%5B%5D=1 ;v=1 a;v=1 v=1;v=2 v=1;x a=1;v=1 a=1&;v=1 +v=1 v%20=1 V=1 v%00=1 v%00x=1 v[=1 v]=1 \
                       []v=1 [v]=1 v[]1=1 v=1&v[]=2 %u0076=1 v%=1 %ff=1 v=1&v=1";
        for query in refused.split_whitespace() {
            assert!(attribute(query, "v").is_err(), "{query}");
        }
        let one = "v=1 %76=1 &v=1 v=%31 v=1&a=2;b=3";
        for query in one.split_whitespace() {
            assert_eq!(attribute(query, "v").unwrap().unwrap(), "1", "{query}");
        }
        for query in ["", "a[v]=1", "vv=1", "x=v", "a=%3Bv=1", "?v=1", "v.x=1"] {
            assert_eq!(attribute(query, "v"), Ok(None), "{query}");
        }
        for query in ["user.id=1", "user+id=1", "USER_ID=1", "user_id[]=1", "user[id=1", "user%5Bid=1"] {
            assert!(attribute(query, "user_id").is_err(), "{query}");
        }
        assert_eq!(attribute("user[id]=1", "user_id"), Ok(None));
        assert_eq!(attribute("filter[b]=1&filter[a]=2", "filter[a]").unwrap().unwrap(), "2");
        assert!(attribute("filter[a][]=2", "filter[a]").is_err());
    }

    /// Fastify 4 begins the query at a semicolon of the path, so a parameter there opened every limit that looks at it.
    #[test]
    fn parameters_of_the_path_are_refused() {
        let read = |path, query| super::attribute(Query::of(Some(path), query), "key");
        for path in ["/a;key=k1", "/a;key=k1&z=", "/a;x=1;key=k1", "/a;x/b;KEY=k1", "/a;%6Bey=k1"] {
            assert!(read(path, "").is_err(), "{path}");
            assert!(read(path, "key=x1").is_err(), "{path}");
        }
        for path in ["/a", "/a;v=1", "/key", "/a%3Bkey=k1", "/a;b=key"] {
            assert_eq!(read(path, "key=k1").unwrap().unwrap(), "k1", "{path}");
        }
    }

    /// Express and PHP do not read a parameter behind the 1,000th, so a limit must not either.
    #[test]
    fn too_many_parameters_are_refused() {
        let many = |count: usize| format!("{}v=2", "&".repeat(count));
        assert_eq!(attribute(&many(499), "v").unwrap().unwrap(), "2");
        assert!(attribute(&many(500), "v").is_err());
        assert!(attribute(&";".repeat(1_000), "v").is_err());
    }
}
