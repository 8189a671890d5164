//! Collects from the items of a module what the rules are about: names, functions and paths, without tests.

use std::mem;

use proc_macro2::{Span, TokenStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::*;

/// The names, functions and paths of a module.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) names: Vec<Name>,
    pub(crate) functions: Vec<Function>,
    pub(crate) uses: Vec<Use>,
    /// Paths that begin with `crate`, `self` or `super`, and their lines; those of `uses` too.
    pub(crate) paths: Vec<(Vec<String>, usize)>,
    pub(crate) test_lines: usize,
}

/// A name where it is declared. The methods of a trait are declared in the trait, not where it is implemented.
pub(crate) struct Name {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    pub(crate) line: usize,
    pub(crate) is_public: bool,
    /// The type or trait that it is a method, a constant or a type of.
    pub(crate) owner: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Constant,
    Field,
    Function,
    Module,
    Type,
    Variable,
    Variant,
}

pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// From the name to the last brace; none without a body.
    pub(crate) lines: Option<usize>,
    /// The names of parameters that are a `bool`, unless a trait gives the signature.
    pub(crate) bools: Vec<String>,
}

/// A name that a `use` brings in.
#[derive(Clone)]
pub(crate) struct Use {
    pub(crate) path: Vec<String>,
    /// None for a glob.
    pub(crate) name: Option<String>,
    pub(crate) is_public: bool,
}

/// Collects from items.
pub(crate) fn collect(items: &[Item]) -> Facts {
    let mut collector = Collector::default();
    items.iter().for_each(|item| collector.visit_item(item));
    collector.facts
}

/// Whether an item is compiled for tests only.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.segments.last().is_some_and(|segment| segment.ident == "test")
            || (path.is_ident("cfg") && attribute.parse_args().is_ok_and(|condition| needs_test(&condition)))
    })
}

/// Whether a `cfg` condition is false in every build that is no test.
fn needs_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else {
        return condition.path().is_ident("test") || condition.path().is_ident("doctest");
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default();
    (list.path.is_ident("all") && parts.iter().any(needs_test))
        || (list.path.is_ident("any") && parts.iter().all(needs_test))
}

#[derive(Default)]
struct Collector {
    facts: Facts,
    owner: Owner,
}

/// The owner of a method.
#[derive(Default)]
enum Owner {
    #[default]
    None,
    Type(String),
    Trait(String, bool),
    /// An `impl` of a trait.
    Elsewhere,
}

impl Collector {
    fn add(&mut self, kind: Kind, ident: &Ident, is_public: bool) {
        let (is_public, owner) = match &self.owner {
            Owner::Type(name) => (is_public, Some(name.clone())),
            Owner::Trait(name, is_public) => (*is_public, Some(name.clone())),
            Owner::None | Owner::Elsewhere => (is_public, None),
        };
        let line = line_of(ident.span());
        self.facts.names.push(Name { kind, text: ident.to_string(), line, is_public, owner });
    }

    fn add_function(&mut self, signature: &Signature, body: Option<&Block>) {
        let line = line_of(signature.ident.span());
        let bools = signature.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(PatType { pat, ty, .. }) => match (&**pat, &**ty) {
                (Pat::Ident(name), Type::Path(path)) if path.path.is_ident("bool") => {
                    Some(name.ident.to_string())
                }
                _ => None,
            },
            FnArg::Receiver(_) => None,
        });
        self.facts.functions.push(Function {
            name: signature.ident.to_string(),
            line,
            lines: body.map(|body| body.brace_token.span.close().end().line + 1 - line),
            bools: if matches!(self.owner, Owner::Elsewhere) { Vec::new() } else { bools.collect() },
        });
    }

    fn add_path(&mut self, path: Vec<String>, span: Span) {
        if path.first().is_some_and(|first| ["crate", "self", "super"].contains(&first.as_str())) {
            self.facts.paths.push((path, line_of(span)));
        }
    }

    fn add_uses(&mut self, tree: &UseTree, mut path: Vec<String>, is_public: bool) {
        let (last, name) = match tree {
            UseTree::Path(next) => {
                path.push(next.ident.to_string());
                return self.add_uses(&next.tree, path, is_public);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_uses(tree, path.clone(), is_public));
            }
            UseTree::Glob(_) => (None, None),
            UseTree::Name(leaf) => (Some(&leaf.ident), Some(&leaf.ident)),
            UseTree::Rename(leaf) => (Some(&leaf.ident), Some(&leaf.rename)),
        };
        // `a::{self}` brings in `a`.
        let name = name.map(|name| {
            if name == "self" { path.last().cloned().unwrap_or_default() } else { name.to_string() }
        });
        path.extend(last.filter(|last| *last != "self").map(Ident::to_string));
        self.add_path(path.clone(), tree.span());
        self.facts.uses.push(Use { path, name, is_public });
    }

    /// Finds paths where there are only tokens, and in texts among them, as in `#[serde(with = "crate::a")]`.
    fn add_tokens(&mut self, tokens: &TokenStream, span: Span) {
        let text = tokens.to_string().replace(" :: ", "::");
        for word in text.split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != ':') {
            self.add_path(word.split("::").map(str::to_owned).collect(), span);
        }
    }

    /// Whether something is a test, whose lines are then counted.
    fn skips(&mut self, attributes: &[Attribute], item: &impl Spanned) -> bool {
        let is_test = is_test(attributes);
        if is_test {
            let span = item.span();
            self.facts.test_lines += span.end().line + 1 - span.start().line;
        }
        is_test
    }
}

fn line_of(span: Span) -> usize {
    span.start().line
}

/// The attributes of an item, and its name if it has one.
fn parts(item: &Item) -> (&[Attribute], Option<(Kind, &Ident, &Visibility)>) {
    match item {
        Item::Const(it) => (&it.attrs, Some((Kind::Constant, &it.ident, &it.vis))),
        Item::Enum(it) => (&it.attrs, Some((Kind::Type, &it.ident, &it.vis))),
        Item::Fn(it) => (&it.attrs, Some((Kind::Function, &it.sig.ident, &it.vis))),
        Item::Impl(it) => (&it.attrs, None),
        Item::Macro(it) => (&it.attrs, None),
        Item::Mod(it) => (&it.attrs, Some((Kind::Module, &it.ident, &it.vis))),
        Item::Static(it) => (&it.attrs, Some((Kind::Constant, &it.ident, &it.vis))),
        Item::Struct(it) => (&it.attrs, Some((Kind::Type, &it.ident, &it.vis))),
        Item::Trait(it) => (&it.attrs, Some((Kind::Type, &it.ident, &it.vis))),
        Item::Type(it) => (&it.attrs, Some((Kind::Type, &it.ident, &it.vis))),
        Item::Union(it) => (&it.attrs, Some((Kind::Type, &it.ident, &it.vis))),
        Item::Use(it) => (&it.attrs, None),
        _ => (&[], None),
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = parts(item);
        if self.skips(attributes, item) {
            return;
        }
        let outside = mem::take(&mut self.owner);
        if let Some((kind, ident, visibility)) = name {
            self.add(kind, ident, is_public(visibility));
        }
        match item {
            // Its items are those of another module.
            Item::Mod(_) => {}
            Item::Use(item) => self.add_uses(&item.tree, Vec::new(), is_public(&item.vis)),
            Item::Fn(item) => {
                self.add_function(&item.sig, Some(&item.block));
                visit::visit_item_fn(self, item);
            }
            Item::Impl(block) => {
                self.owner = match (&block.trait_, &*block.self_ty) {
                    (None, Type::Path(TypePath { path, .. })) => {
                        Owner::Type(path.segments.last().map_or(String::new(), |last| last.ident.to_string()))
                    }
                    _ => Owner::Elsewhere,
                };
                visit::visit_item_impl(self, block);
            }
            Item::Trait(item) => {
                self.owner = Owner::Trait(item.ident.to_string(), is_public(&item.vis));
                visit::visit_item_trait(self, item);
            }
            item => visit::visit_item(self, item),
        }
        self.owner = outside;
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let is_ours = !matches!(self.owner, Owner::Elsewhere);
        match item {
            ImplItem::Fn(method) if self.skips(&method.attrs, method) => return,
            ImplItem::Fn(method) => {
                self.add_function(&method.sig, Some(&method.block));
                if is_ours {
                    self.add(Kind::Function, &method.sig.ident, is_public(&method.vis));
                }
            }
            ImplItem::Const(constant) if is_ours => {
                self.add(Kind::Constant, &constant.ident, is_public(&constant.vis));
            }
            _ => {}
        }
        visit::visit_impl_item(self, item);
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        match item {
            TraitItem::Fn(method) => {
                self.add(Kind::Function, &method.sig.ident, true);
                self.add_function(&method.sig, method.default.as_ref());
            }
            TraitItem::Const(constant) => self.add(Kind::Constant, &constant.ident, true),
            TraitItem::Type(item) => self.add(Kind::Type, &item.ident, true),
            _ => {}
        }
        visit::visit_trait_item(self, item);
    }

    /// Fields of Protocol Buffers are named by their protocol.
    fn visit_field(&mut self, field: &'ast Field) {
        let is_of_protocol = field.attrs.iter().any(|attribute| attribute.path().is_ident("prost"));
        if let Some(name) = field.ident.as_ref().filter(|_| !is_of_protocol) {
            self.add(Kind::Field, name, false);
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.add(Kind::Variant, &variant.ident, false);
        visit::visit_variant(self, variant);
    }

    /// A pattern that begins with a capital is a constant or a variant, and declares nothing.
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        if !pattern.ident.to_string().starts_with(char::is_uppercase) {
            self.add(Kind::Variable, &pattern.ident, false);
        }
        visit::visit_pat_ident(self, pattern);
    }

    /// `Type { field }` takes the name of the field, which counts where the field is declared.
    fn visit_field_pat(&mut self, pattern: &'ast FieldPat) {
        if pattern.colon_token.is_some() {
            visit::visit_field_pat(self, pattern);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let parts = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add_path(parts, path.segments[0].ident.span());
        }
        visit::visit_path(self, path);
    }

    /// Looks into macros whose arguments are items or expressions; in others it finds the paths.
    fn visit_macro(&mut self, called: &'ast Macro) {
        type Expressions = Punctuated<Expr, Token![,]>;
        if let Ok(expressions) = called.parse_body_with(Expressions::parse_terminated) {
            expressions.iter().for_each(|expression| self.visit_expr(expression));
        } else if let Ok(file) = called.parse_body::<File>() {
            file.items.iter().for_each(|item| self.visit_item(item));
        } else {
            self.add_tokens(&called.tokens, called.path.span());
        }
        visit::visit_macro(self, called);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.add_tokens(&list.tokens, attribute.pound_token.span);
        }
    }

    /// `pub(super)` uses nothing.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}
