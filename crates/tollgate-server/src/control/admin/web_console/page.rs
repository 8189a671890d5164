//! Pages as HTML. Every text goes through [`escaped`], whatever it is, because a caller may have chosen it.

use super::super::route::Verb;
use super::act::Acted;
use super::intent::Offer;
use super::overview::Overview;
use super::panel::{Fact, Panel, PanelEntry, PanelField};
use super::sentence::Sentences;
use super::session::ConsoleSession;

/// The console, with places for what the server fills in.
pub(super) const TEMPLATE: &str = include_str!("console.html");
/// The form to log in, and the frame of the other pages.
pub(super) const LOGIN: &str = include_str!("login.html");

/// The form for a candidate policy.
const WHAT_IF: &str = include_str!("what_if.html");

/// Text for HTML, between tags and in quoted attributes.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// Fills the places `{{name}}` of a template. Each value is HTML already. A value is never searched for places, so that
/// no text of a caller becomes one.
fn filled(template: &str, values: &[(&str, &str)]) -> String {
    let mut page = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        page.push_str(values.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value));
        rest = after;
    }
    page.push_str(rest);
    page
}

/// The form to log in, with what was wrong before.
pub(super) fn login(problem: Option<&str>) -> String {
    let problem = problem.map(|text| format!("<p role=\"alert\" class=\"bad\">{}</p>", escaped(text)));
    let form = "<form method=\"post\" action=\"/console/login\">\n\
         <label for=\"token\">Admin token</label>\n\
         <input id=\"token\" name=\"token\" type=\"password\" autocomplete=\"current-password\" required autofocus>\n\
         <button>Log in</button>\n\
         </form>\n\
         <p class=\"note\">The server printed it when it started, or wrote it to the file of \
         <code>--admin-token-file</code>.</p>";
    let main = format!("<h1>Tollgate console</h1>\n{}\n{form}", problem.unwrap_or_default());
    filled(LOGIN, &[("title", "Log in"), ("main", &main)])
}

/// A page with the answer to a form.
pub(super) fn acted(acted: &Acted) -> String {
    let command = acted.command.as_deref();
    let command = command.map(|text| format!("<p>The same as a command:</p>\n<pre>{}</pre>", escaped(text)));
    let panels: String = acted.panels.iter().map(panel_html).collect();
    message(&acted.title, &acted.sentences, &format!("{panels}{}", command.unwrap_or_default()))
}

/// A page with a message, more HTML, and the way back.
pub(super) fn message(title: &str, sentences: &Sentences, more: &str) -> String {
    let main = format!("<h1>{}</h1>\n{}\n{more}\n{BACK}", escaped(title), sentences_html(sentences));
    filled(LOGIN, &[("title", &escaped(title)), ("main", &main)])
}

const BACK: &str = "<p><a href=\"/console\">Back to the console</a></p>";

fn sentences_html(sentences: &Sentences) -> String {
    let more: String = sentences.more.iter().map(|text| format!("<li>{}</li>\n", escaped(text))).collect();
    format!(
        "<p role=\"status\" class=\"{}\">{}</p>\n<ul>{more}</ul>",
        sentences.tone.name(),
        escaped(&sentences.first)
    )
}

/// A page about a key or a limit, with what may be done about it.
pub(super) fn subject(
    title: &str,
    sentences: &Sentences,
    offers: &[Offer],
    session: &ConsoleSession,
) -> String {
    let forms: String = offers.iter().map(|offer| offer_form(offer, session)).collect();
    let main = format!("<h1>{}</h1>\n{}\n{forms}{BACK}", escaped(title), sentences_html(sentences));
    filled(LOGIN, &[("title", &escaped(title)), ("main", &main)])
}

fn offer_form(offer: &Offer, session: &ConsoleSession) -> String {
    let hidden = |name: &str, value: &str| {
        format!("<input type=\"hidden\" name=\"{}\" value=\"{}\">", escaped(name), escaped(value))
    };
    let fields: String = offer.intent.fields().iter().map(|(name, value)| hidden(name, value)).collect();
    format!(
        "<form method=\"post\" action=\"/console/act\" class=\"offer\">{}{fields}<button>{}</button> <code>{}</code></form>\n",
        hidden("form_token", &session.form_token),
        escaped(&offer.label),
        escaped(&offer.intent.command())
    )
}

/// The console with an overview.
pub(super) fn console(overview: &Overview, audit: Option<&Panel>, session: &ConsoleSession) -> String {
    let strip: String = overview.strip.iter().map(fact_html).collect();
    let panels: String = overview.panels.iter().chain(audit).map(panel_html).collect();
    let what_if = if session.who.role >= Verb::Diff.role() {
        filled(WHAT_IF, &[("form_token", &escaped(&session.form_token))])
    } else {
        String::new()
    };
    let who = format!("{} ({})", session.who.name, session.who.role.name());
    filled(
        TEMPLATE,
        &[
            ("role", session.who.role.name()),
            ("who", &escaped(&who)),
            ("form_token", &escaped(&session.form_token)),
            ("at", &escaped(&overview.at)),
            ("strip", &strip),
            ("panels", &panels),
            ("what_if", &what_if),
        ],
    )
}

fn fact_html(fact: &Fact) -> String {
    format!(
        "<div class=\"{}\"><dt>{}</dt><dd>{}</dd></div>\n",
        fact.tone.name(),
        escaped(fact.name),
        escaped(&fact.text)
    )
}

fn panel_html(panel: &Panel) -> String {
    let has_links = panel.entries.iter().any(|entry| entry.about.is_some());
    let mut heads: String =
        panel.columns.iter().map(|column| format!("<th scope=\"col\">{}</th>", escaped(column))).collect();
    if has_links {
        heads.push_str("<th scope=\"col\"><span class=\"sr\">open</span></th>");
    }
    let mut rows: String = panel.entries.iter().map(|entry| entry_html(entry, panel.columns)).collect();
    if panel.entries.is_empty() {
        rows = format!("<tr><td colspan=\"{}\">{}</td></tr>\n", panel.columns.len(), escaped(panel.empty));
    }
    format!(
        "<section class=\"panel\" id=\"{id}\" aria-labelledby=\"{id}-title\"><h2 id=\"{id}-title\">{}</h2>\n\
         <p class=\"note\">{}</p>\n<div class=\"scroll\"><table><thead><tr>{heads}</tr></thead>\n\
         <tbody>{rows}</tbody></table></div></section>\n",
        escaped(panel.title),
        escaped(&panel.note),
        id = panel.id
    )
}

fn entry_html(entry: &PanelEntry, columns: &[&str]) -> String {
    let field = |(field, column): (&PanelField, &&str)| {
        format!(
            "<td class=\"{}\" data-column=\"{}\">{}</td>",
            field.tone.name(),
            escaped(column),
            escaped(&field.text)
        )
    };
    let mut cells: String = entry.fields.iter().zip(columns).map(field).collect();
    if let Some(query) = &entry.about {
        cells.push_str(&format!(
            "<td class=\"open\"><a class=\"button\" href=\"/console/subject?{}\">Open</a></td>",
            escaped(query)
        ));
    }
    format!("<tr>{cells}</tr>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that a caller chose ends no tag, no attribute and no place of the template.
    #[test]
    fn callers_write_no_html() {
        let hostile = "\"'><script>alert(1)</script>{{form_token}}&amp;";
        let entry = PanelEntry::new([hostile.into()]).about(Some("key=%22%3E&limit='>".to_owned()));
        let html = entry_html(&entry, &["key"]);
        assert!(!html.contains("<script") && !html.contains("'>"), "{html}");
        assert!(html.contains("&quot;&#39;&gt;&lt;script&gt;"), "{html}");
        let page = filled("<b>{{a}}</b>{{missing}}{{b}}", &[("a", &escaped(hostile)), ("b", "x")]);
        assert!(page.contains("{{form_token}}") && page.ends_with("</b>x"), "{page}");
        assert!(login(Some(hostile)).contains("&lt;script&gt;"));
    }
}
