//! The function that `#[locked]` writes: lock, then the body with all arguments, then release.
//!
//! The body is a block of its own whose statements and tail stand as they stood, so the compiler says of them what it would say
//! without us. Names of ours are of mixed site: the body does not see them.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{
    Error, Expr, ExprAsync, GenericArgument, ItemFn, PathArguments, Result, ReturnType, Stmt,
    TraitItemFn, Type, TypeParamBound, parse2, spanned::Spanned,
};

use crate::{
    params::{inferred, moved, words},
    parse::Options,
};

pub(crate) fn locked(options: TokenStream, function: &TokenStream) -> TokenStream {
    let written = try_locked(options, function.clone());
    written.unwrap_or_else(|error| {
        // The function stays, so that its callers make no errors of their own.
        let error = error.into_compile_error();
        quote!(#function #error)
    })
}

fn try_locked(options: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let used = words(&options);
    let options: Options = parse2(options)?;
    let mut function = function_of(function)?;
    refuse_shape(&function, &options)?;
    if let Some(inner) = promised(&function) {
        // `async_trait` was here: its block is the body, and it has moved the arguments there already.
        let writer = Writer::new(&options, &function.sig.ident, inner.output.clone());
        let body = &inner.block.block.stmts;
        let written = writer.write(
            &TokenStream::new(),
            body,
            inner.block.block.brace_token.span.join(),
        );
        let mut block = inner.block.clone();
        block.block.stmts = vec![Stmt::Expr(Expr::Verbatim(written), None)];
        inner.put(&mut function, block);
        return Ok(function.into_token_stream());
    }
    let moves = moved(&mut function.sig, &used);
    let output = match &function.sig.output {
        ReturnType::Default => quote_spanned!(function.sig.ident.span()=> ()),
        ReturnType::Type(_, output) => output.to_token_stream(),
    };
    let writer = Writer::new(&options, &function.sig.ident, output);
    let span = function.block.brace_token.span.join();
    let written = writer.write(&moves, &function.block.stmts, span);
    function.block.stmts = vec![Stmt::Expr(Expr::Verbatim(written), None)];
    Ok(function.into_token_stream())
}

fn function_of(tokens: TokenStream) -> Result<ItemFn> {
    let at = tokens.clone().into_iter().next();
    let at = at.map_or_else(Span::call_site, |token| token.span());
    if let Ok(declared) = parse2::<TraitItemFn>(tokens.clone())
        && declared.default.is_none()
    {
        let why = "`#[locked]` goes onto the function that does the work: here is no body; say it where the trait is implemented";
        return Err(Error::new(declared.sig.ident.span(), why));
    }
    parse2(tokens).map_err(|_| {
        Error::new(
            at,
            "`#[locked]` goes onto an `async fn`, or with `blocking` onto a `fn`",
        )
    })
}

/// Refuses functions whose lock would end before their work begins.
fn refuse_shape(function: &ItemFn, options: &Options) -> Result<()> {
    let sig = &function.sig;
    if let Some(word) = &sig.constness {
        return Err(Error::new(
            word.span(),
            "a `const fn` cannot lock, since it may run while the program is compiled: take `const` away",
        ));
    }
    if let Some(abi) = &sig.abi {
        return Err(Error::new(
            abi.span(),
            "an `extern` function cannot be `#[locked]`: lock in a Rust function, and call that",
        ));
    }
    match (&sig.asyncness, options.blocking) {
        (Some(_), Some(at)) => Err(Error::new(
            at,
            "`blocking` is for a plain `fn`; this function is `async`, so leave it out",
        )),
        (None, None) if promised(function).is_none() => Err(Error::new(
            sig.fn_token.span(),
            "`#[locked]` goes onto an `async fn`: write `async fn`, or add `blocking` to the attribute if the work blocks its thread (of a future that a plain `fn` returns, the lock would end before it runs)",
        )),
        _ => Ok(()),
    }
}

/// `Box::pin(async move { … })` as the whole body, with the output that is promised for it.
struct Promised {
    block: ExprAsync,
    output: TokenStream,
}

impl Promised {
    /// Puts another block where the promised one stands.
    #[allow(clippy::unused_self, reason = "the shape was looked at")]
    fn put(&self, function: &mut ItemFn, block: ExprAsync) {
        if let Some(Stmt::Expr(Expr::Call(call), None)) = function.block.stmts.last_mut() {
            call.args = std::iter::once(Expr::Async(block)).collect();
        }
    }
}

fn promised(function: &ItemFn) -> Option<Promised> {
    let [Stmt::Expr(Expr::Call(call), None)] = &function.block.stmts[..] else {
        return None;
    };
    let Expr::Path(path) = &*call.func else {
        return None;
    };
    let called: Vec<String> = path
        .path
        .segments
        .iter()
        .map(|part| part.ident.to_string())
        .collect();
    if !matches!(&called[..], [.., kind, verb] if kind == "Box" && verb == "pin")
        || call.args.len() != 1
    {
        return None;
    }
    let Some(Expr::Async(block)) = call.args.first() else {
        return None;
    };
    let ReturnType::Type(_, output) = &function.sig.output else {
        return None;
    };
    Some(Promised {
        block: block.clone(),
        output: output_of(output)?,
    })
}

/// `T` of `Pin<Box<dyn Future<Output = T>>>`.
fn output_of(promise: &Type) -> Option<TokenStream> {
    let arguments = |kind: &Type| -> Option<Vec<GenericArgument>> {
        let Type::Path(path) = kind else { return None };
        match &path.path.segments.last()?.arguments {
            PathArguments::AngleBracketed(inner) => Some(inner.args.iter().cloned().collect()),
            _ => None,
        }
    };
    let inner = |kind: &Type| match arguments(kind)?.into_iter().next()? {
        GenericArgument::Type(inner) => Some(inner),
        _ => None,
    };
    let Type::TraitObject(object) = inner(&inner(promise)?)? else {
        return None;
    };
    object.bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        let PathArguments::AngleBracketed(inner) = &bound.path.segments.last()?.arguments else {
            return None;
        };
        inner.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(of) if of.ident == "Output" => Some(of.ty.to_token_stream()),
            _ => None,
        })
    })
}

/// The settings that the parts of the written function share.
struct Writer<'a> {
    options: &'a Options,
    /// The function's own name: errors name this place as the one that holds the lock.
    place: Span,
    output: TokenStream,
}

fn ours(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

fn optional(value: Option<&TokenStream>) -> TokenStream {
    let none = || quote!(::core::option::Option::None);
    value.map_or_else(none, |value| quote!(::core::option::Option::Some(#value)))
}

impl<'a> Writer<'a> {
    fn new(options: &'a Options, name: &Ident, output: TokenStream) -> Writer<'a> {
        Writer {
            options,
            place: name.span(),
            output,
        }
    }

    fn write(&self, moves: &TokenStream, body: &[Stmt], braces: Span) -> TokenStream {
        let (entered, guard, output, error) = (
            ours("entered"),
            ours("guard"),
            ours("output"),
            ours("error"),
        );
        let demand = ours("demand");
        let (terms, enter) = self.enter(&demand);
        let refused = self.refused(&error);
        let failed = self.failed(&error);
        let (lends, takes) = match &self.options.guard {
            Some(name) => (
                quote!(let #guard = #entered.guard();),
                quote!(let #name = #guard;),
            ),
            None => Default::default(),
        };
        let typed = self.typed();
        // Items that stand first stay first: a lint would say that they follow statements, which are ours.
        let items = body.iter().take_while(|stmt| matches!(stmt, Stmt::Item(_)));
        let (items, body) = body.split_at(items.count());
        let body = quote!(#(#items)* #moves #takes #typed #(#body)*);
        let mut body = Group::new(proc_macro2::Delimiter::Brace, body);
        // A body that ends without its value is told of at its braces.
        body.set_span(braces);
        let body = TokenTree::Group(body);
        // How it is waited for: by the thread, or at an `.await`.
        let is_blocking = self.options.blocking.is_some();
        let place = self.place;
        let (attribute, work, wait) = if is_blocking {
            (
                quote!(::leasehold::blocking::attribute),
                quote!(move || #body),
                quote!(),
            )
        } else {
            (
                quote!(::leasehold::attribute),
                quote!(async move #body),
                quote!(.await),
            )
        };
        if let Some((interval, _)) = &self.options.once_per {
            let kind = &self.options.kind;
            let once = quote_spanned!(place=> #attribute::once::<::leasehold::#kind, _>);
            return quote! {
                #terms
                match #once(#demand, #interval, #work) #wait {
                    ::core::result::Result::Ok(#output) => #output,
                    ::core::result::Result::Err(#error) => #refused,
                }
            };
        }
        if is_blocking {
            let kind = &self.options.kind;
            let enter = quote_spanned!(place=> #attribute::enter::<::leasehold::#kind>);
            return quote! {
                #terms
                let #entered = match #enter(#demand) {
                    ::core::result::Result::Ok(#entered) => #entered,
                    ::core::result::Result::Err(#error) => return #refused,
                };
                #lends
                let #output = #attribute::run(&#entered, #work);
                match #attribute::leave(#entered, #output) {
                    ::core::result::Result::Ok(#output) => #output,
                    ::core::result::Result::Err(#error) => #failed,
                }
            };
        }
        quote! {
            #terms
            let #entered = match #enter.await {
                ::core::result::Result::Ok(#entered) => #entered,
                ::core::result::Result::Err(#error) => return #refused,
            };
            #lends
            let #output = #entered.run(#work).await;
            match #entered.leave(#output).await {
                ::core::result::Result::Ok(#output) => #output,
                ::core::result::Result::Err(#error) => #failed,
            }
        }
    }

    /// The demand, and the call that waits for it, as two statements: a value that the name is made of may not be `Send`, and is
    /// gone by the first `.await`.
    fn enter(&self, demand: &Ident) -> (TokenStream, TokenStream) {
        let Options {
            name,
            kind,
            reentrant,
            ..
        } = self.options;
        let client = self.options.client.as_ref().map(|client| {
            let span = client.span();
            // `client = &self.locks` needs no second `&`, and a lint would say so.
            let and = (!matches!(client, Expr::Reference(_))).then(|| quote_spanned!(span=> &));
            quote_spanned!(span=> ::leasehold::attribute::client(#and #client))
        });
        let client = optional(client.as_ref());
        let wait = optional(self.options.wait.as_ref());
        let lease = optional(self.options.lease.as_ref());
        let fixed_lease = optional(self.options.fixed_lease.as_ref());
        let max_hold = optional(self.options.max_hold.as_ref());
        let place = self.place;
        let terms = quote! {
            let #demand = ::leasehold::attribute::Demand {
                client: #client,
                name: ::std::fmt::format(::core::format_args!(#name)),
                wait: #wait,
                lease: #lease,
                fixed_lease: #fixed_lease,
                max_hold: #max_hold,
                reentrant: #reentrant,
            };
        };
        let enter =
            quote_spanned!(place=> ::leasehold::attribute::enter::<::leasehold::#kind>(#demand));
        (terms, enter)
    }

    /// The value that the function returns when it was not entered.
    fn refused(&self, error: &Ident) -> TokenStream {
        let failed = self.failed(error);
        match &self.options.busy {
            Some(busy) => quote! {
                match #error {
                    ::leasehold::Error::Busy { .. } => #busy,
                    #error => #failed,
                }
            },
            None => failed,
        }
    }

    /// The value that the function returns of a failure.
    fn failed(&self, error: &Ident) -> TokenStream {
        if let Some(failed) = &self.options.failed {
            return quote!(::leasehold::attribute::failed(#error, #failed));
        }
        let output = &self.output;
        let span = output.span();
        let says = if is_said(output) {
            quote_spanned!(span=> <#output as ::leasehold::attribute::Report>::report)
        } else {
            quote_spanned!(span=> ::leasehold::attribute::Report::report)
        };
        quote!(#says(#error))
    }

    /// Tells the compiler the type of the body, which it knew of the function.
    fn typed(&self) -> TokenStream {
        let output = inferred(self.output.clone());
        // The compiler knows all about what never returns, and lets no other code name it.
        if output.to_string() == "!" {
            return TokenStream::new();
        }
        let typed = ours("typed");
        quote! {
            #[allow(
                unknown_lints, unreachable_code, clippy::diverging_sub_expression, clippy::empty_loop, clippy::let_unit_value,
                clippy::let_with_type_underscore, clippy::needless_return, clippy::unreachable
            )]
            if false {
                let #typed: #output = loop {};
                return #typed;
            }
        }
    }
}

/// Whether a type can be said outside of a signature.
fn is_said(kind: &TokenStream) -> bool {
    inferred(kind.clone()).to_string() == kind.to_string()
}
