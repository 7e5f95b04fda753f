//! The arguments: they move into the body, so that none outlives the lock.

use std::collections::BTreeSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::{FnArg, Pat, PatIdent, Signature, ext::IdentExt};

/// The words of some tokens, those of their texts too.
pub(crate) fn words(tokens: &TokenStream) -> BTreeSet<String> {
    let text = tokens.to_string();
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.map(str::to_owned).collect()
}

/// The statements that move each argument into the body. `mut` moves with them, so that the lint `unused_mut` sees what it would see
/// without us; so does each name, for `unused_variables`. Arguments that the brackets use are used.
pub(crate) fn moved(sig: &mut Signature, used: &BTreeSet<String>) -> TokenStream {
    let mut moves = TokenStream::new();
    for (at, input) in sig.inputs.iter_mut().enumerate() {
        let argument = match input {
            FnArg::Receiver(receiver) => {
                let this = receiver.self_token;
                moves.extend(quote!(let _ = &#this;));
                continue;
            }
            FnArg::Typed(argument) => argument,
        };
        if let Pat::Wild(_) = &*argument.pat {
            // It has no name to move it by.
            let name = format_ident!("argument{at}", span = Span::mixed_site());
            let quiet = format_ident!("_argument{at}", span = Span::mixed_site());
            moves.extend(quote!(let #quiet = #name;));
            *argument.pat = Pat::Ident(PatIdent {
                attrs: Vec::new(),
                by_ref: None,
                mutability: None,
                ident: name,
                subpat: None,
            });
            continue;
        }
        // Its attributes say whether it is there, and which lints are silent.
        let attrs = &argument.attrs;
        let mut names = Vec::new();
        bound(&mut argument.pat, &mut names);
        for (mutability, name) in names {
            moves.extend(quote! {
                #(#attrs)*
                #[allow(clippy::redundant_locals, clippy::used_underscore_binding, clippy::no_effect_underscore_binding)]
                let #mutability #name = #name;
            });
            if used.contains(&name.unraw().to_string()) {
                moves.extend(quote!(#(#attrs)* let _ = &#name;));
            }
        }
    }
    moves
}

/// The names that a pattern binds, whose `mut` is taken from them.
fn bound(pattern: &mut Pat, names: &mut Vec<(Option<syn::Token![mut]>, Ident)>) {
    let mut all = |patterns: &mut dyn Iterator<Item = &mut Pat>| {
        patterns.for_each(|pattern| bound(pattern, names));
    };
    match pattern {
        Pat::Ident(one) => {
            let mutability = if one.by_ref.is_some() {
                None
            } else {
                one.mutability.take()
            };
            names.push((mutability, one.ident.clone()));
            if let Some((_, inner)) = &mut one.subpat {
                bound(inner, names);
            }
        }
        Pat::Paren(inner) => bound(&mut inner.pat, names),
        Pat::Reference(inner) => bound(&mut inner.pat, names),
        Pat::Type(inner) => bound(&mut inner.pat, names),
        Pat::Slice(inner) => all(&mut inner.elems.iter_mut()),
        Pat::Tuple(inner) => all(&mut inner.elems.iter_mut()),
        Pat::TupleStruct(inner) => all(&mut inner.elems.iter_mut()),
        Pat::Struct(inner) => all(&mut inner.fields.iter_mut().map(|field| &mut *field.pat)),
        // All sides of an `|` bind the same names.
        Pat::Or(inner) => {
            let mut sides = inner.cases.iter_mut();
            if let Some(first) = sides.next() {
                bound(first, names);
            }
            sides.for_each(|side| bound(side, &mut Vec::new()));
        }
        _ => {}
    }
}

/// A type in which `_` stands for each `impl Trait`, which only a signature may say.
pub(crate) fn inferred(tokens: TokenStream) -> TokenStream {
    let (mut out, mut depth, mut inside, mut dash) = (TokenStream::new(), 0_usize, false, false);
    for token in tokens {
        let sign = match &token {
            TokenTree::Punct(punct) => punct.as_char(),
            _ => ' ',
        };
        if inside {
            let closes = sign == '>' && !dash;
            match sign {
                '<' => depth += 1,
                _ if closes && depth > 0 => depth -= 1,
                ',' if depth == 0 => inside = false,
                _ if closes => inside = false,
                _ => {}
            }
        }
        dash = sign == '-';
        if inside {
            continue;
        }
        match token {
            TokenTree::Ident(word) if word == "impl" => {
                (inside, depth) = (true, 0);
                let span = word.span();
                out.extend(quote_spanned!(span=> _));
            }
            TokenTree::Group(group) => {
                let mut within =
                    proc_macro2::Group::new(group.delimiter(), inferred(group.stream()));
                within.set_span(group.span());
                out.extend([TokenTree::Group(within)]);
            }
            other => out.extend([other]),
        }
    }
    out
}
