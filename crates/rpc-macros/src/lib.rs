//! The attribute of `vmmc-rpc` that makes a service of a trait: a client with the same methods, and
//! a handler for whoever implements it.
//!
//! Invariant: the number of a method comes of its name and its types, so that a client and a server
//! of different versions find no such method, and never another one. Source: [GMS §3] stubs, which
//! were written by hand there.

#![forbid(unsafe_code)]

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use std::collections::HashMap;
use syn::spanned::Spanned;
use syn::{Error, FnArg, Ident, ItemTrait, Pat, ReturnType, TraitItem, TraitItemFn, Type, parse_macro_input};

/// Makes a service of a trait; see `vmmc_rpc::service`.
#[proc_macro_attribute]
pub fn service(attribute: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = parse_macro_input!(item as ItemTrait);
    if !attribute.is_empty() {
        let span = TokenStream::from(attribute).span();
        return Error::new(span, "the attribute takes no arguments").to_compile_error().into();
    }
    expand(item).unwrap_or_else(Error::into_compile_error).into()
}

/// A method, as far as it is understood.
struct Method {
    /// As it stands, without our attribute.
    item: TraitItemFn,
    name: Ident,
    number: u16,
    arguments: Vec<(Ident, Type)>,
    /// A parameter of type `&[u8]`.
    bulk: Option<Ident>,
    /// A parameter of type `&mut [u8]`.
    into: Option<Ident>,
    result: Type,
    /// Its handler gets the reply, to give it later or to pass the call on.
    deferred: bool,
}

fn expand(mut item: ItemTrait) -> Result<TokenStream, Error> {
    if let Some(first) = item.generics.params.first() {
        return Err(Error::new(first.span(), "a service has no generic parameters"));
    }
    let mut methods = Vec::new();
    let mut numbers: HashMap<u16, Ident> = HashMap::new();
    for member in &item.items {
        let TraitItem::Fn(function) = member else {
            return Err(Error::new(member.span(), "a service has methods and nothing else"));
        };
        let method = Method::of(function)?;
        if let Some(other) = numbers.insert(method.number, method.name.clone()) {
            let what = format!("its number is that of `{other}`: call one of them something else");
            return Err(Error::new(method.name.span(), what));
        }
        methods.push(method);
    }
    item.items = methods.iter().map(|method| TraitItem::Fn(method.trait_item())).collect();
    let (visible, name) = (&item.vis, &item.ident);
    let arms = methods.iter().map(Method::arm);
    let names = methods.iter().map(|method| {
        let (number, name) = (method.number, method.name.to_string());
        quote!((#number, #name))
    });
    let handler: TraitItemFn = syn::parse_quote! {
        /// A handler for `vmmc_rpc::ServerBuilder::serve`.
        fn into_handler(self) -> ::vmmc_rpc::Handler
        where
            Self: Sized + Send + Sync + 'static,
        {
            let run = move |call: ::vmmc_rpc::Call| match call.method() {
                #(#arms)*
                _ => call.no_method(),
            };
            ::vmmc_rpc::Handler::from(run).methods(&[#(#names),*])
        }
    };
    item.items.push(TraitItem::Fn(handler));
    // A program that only calls does not implement it.
    item.attrs.push(syn::parse_quote!(#[allow(dead_code)]));
    let client = format_ident!("{name}Client");
    let calls = methods.iter().map(Method::client);
    let about = format!("Calls a [`{name}`] service.");
    Ok(quote! {
        #item

        #[doc = #about]
        #[derive(Clone, Debug)]
        #visible struct #client {
            client: ::vmmc_rpc::Client,
        }

        impl From<::vmmc_rpc::Client> for #client {
            fn from(client: ::vmmc_rpc::Client) -> Self {
                #client { client }
            }
        }

        #[allow(dead_code, clippy::too_many_arguments)]
        impl #client {
            /// The client that the calls go through.
            #visible fn client(&self) -> &::vmmc_rpc::Client {
                &self.client
            }

            #(#calls)*
        }
    })
}

impl Method {
    fn of(function: &TraitItemFn) -> Result<Method, Error> {
        let signature = &function.sig;
        let refuse = |span: Span, what: &str| Err(Error::new(span, what));
        if let Some(body) = &function.default {
            return refuse(body.span(), "a method of a service has no body");
        }
        if signature.asyncness.is_some() || !signature.generics.params.is_empty() {
            return refuse(signature.span(), "a method of a service is not async and has no generic parameters");
        }
        let mut inputs = signature.inputs.iter();
        match inputs.next() {
            Some(FnArg::Receiver(receiver)) if receiver.reference.is_some() && receiver.mutability.is_none() => {}
            other => {
                let span = other.map_or_else(|| signature.span(), Spanned::span);
                return refuse(span, "a method of a service takes `&self`: threads call it side by side");
            }
        }
        let (mut arguments, mut bulk, mut into) = (Vec::new(), None, None);
        for input in inputs {
            let FnArg::Typed(input) = input else { return refuse(input.span(), "`self` comes first") };
            let Pat::Ident(name) = &*input.pat else { return refuse(input.pat.span(), "a name is needed here") };
            let name = name.ident.clone();
            let place = match slice_of_bytes(&input.ty) {
                Some(false) => &mut bulk,
                Some(true) => &mut into,
                None if matches!(&*input.ty, Type::Reference(reference) if reference.mutability.is_some()) => {
                    return refuse(input.ty.span(), "nothing comes back through it: a `&mut [u8]` does, or a result");
                }
                None => {
                    arguments.push((name, (*input.ty).clone()));
                    continue;
                }
            };
            if place.replace(name).is_some() {
                return refuse(input.span(), "one `&[u8]` goes as bulk and one `&mut [u8]` comes back, and no more");
            }
        }
        let result = match &signature.output {
            ReturnType::Default => syn::parse_quote!(()),
            ReturnType::Type(_, result) => (**result).clone(),
        };
        let mut item = function.clone();
        let (ours, theirs): (Vec<_>, Vec<_>) =
            item.attrs.into_iter().partition(|attribute| attribute.path().is_ident("deferred"));
        item.attrs = theirs;
        let name = signature.ident.clone();
        let number = number_of(&quote!(#signature).to_string());
        Ok(Method { item, name, number, arguments, bulk, into, result, deferred: !ours.is_empty() })
    }

    /// As it stands in the trait.
    fn trait_item(&self) -> TraitItemFn {
        let mut item = self.item.clone();
        if self.deferred {
            let result = &self.result;
            // What would be filled is given with the answer.
            let into = self.into.as_ref();
            item.sig.inputs = item.sig.inputs.into_iter().filter(|input| !is_named(input, into)).collect();
            item.sig.inputs.push(syn::parse_quote!(reply: ::vmmc_rpc::Reply<#result>));
            item.sig.output = ReturnType::Default;
        }
        item
    }

    /// Types of what is encoded: the arguments, and the length that is wanted.
    fn wire_types(&self) -> Vec<TokenStream> {
        let types = self.arguments.iter().map(|(_, of)| quote!(#of));
        types.chain(self.into.iter().map(|_| quote!(u64))).collect()
    }

    /// A part of the handler: takes the arguments, calls the method, answers.
    fn arm(&self) -> TokenStream {
        let Method { name, number, bulk, into, deferred, .. } = self;
        let names: Vec<&Ident> = self.arguments.iter().map(|(name, _)| name).collect();
        let types = self.wire_types();
        let wanted = into.iter().map(|_| quote!(wanted));
        let read_bulk = bulk.iter().map(|bulk| quote!(let #bulk = call.bulk_to_vec();));
        // In the order of the method.
        let passed: Vec<TokenStream> = self
            .item
            .sig
            .inputs
            .iter()
            .skip(1)
            .filter_map(|input| {
                let FnArg::Typed(input) = input else { return None };
                let Pat::Ident(pattern) = &*input.pat else { return None };
                let name = &pattern.ident;
                match () {
                    () if Some(name) == bulk.as_ref() => Some(quote!(&#name[..])),
                    () if Some(name) == into.as_ref() && *deferred => None,
                    () if Some(name) == into.as_ref() => Some(quote!(&mut #name[..])),
                    () => Some(quote!(#name)),
                }
            })
            .collect();
        let taken = quote! {
            let encoded = call.arguments().to_vec();
            let Some((#(#names,)* #(#wanted,)*)) = ::vmmc_rpc::decode::<(#(#types,)*)>(&encoded) else {
                return call.bad_arguments();
            };
            #(#read_bulk)*
        };
        let done = match (deferred, into) {
            (true, Some(_)) => quote! {
                let reply = ::vmmc_rpc::Reply::new(call, wanted);
                self.#name(#(#passed,)* reply);
            },
            (true, None) => quote! {
                let reply = ::vmmc_rpc::Reply::new(call, 0);
                self.#name(#(#passed,)* reply);
            },
            (false, Some(into)) => quote! {
                let Some(mut #into) = ::vmmc_rpc::bulk_of(&call, wanted) else { return call.bad_arguments() };
                let result = self.#name(#(#passed,)*);
                call.answer_with_bulk(&::vmmc_rpc::encode(&result), &#into);
            },
            (false, None) => quote! {
                let result = self.#name(#(#passed,)*);
                call.answer(&::vmmc_rpc::encode(&result));
            },
        };
        quote! { #number => { #taken #done } }
    }

    /// What the client has for it.
    fn client(&self) -> TokenStream {
        let Method { name, number, bulk, into, result, .. } = self;
        let names: Vec<&Ident> = self.arguments.iter().map(|(name, _)| name).collect();
        let documents = self.item.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
        let documents: Vec<_> = documents.collect();
        let inputs = self.item.sig.inputs.iter().skip(1);
        let with_bulk = bulk.iter().map(|bulk| quote!(.bulk(#bulk)));
        let with_bulk: Vec<_> = with_bulk.collect();
        let Some(into) = into else {
            let (inputs, again): (Vec<_>, Vec<_>) = inputs.map(|input| (input, input)).unzip();
            let start = format_ident!("{name}_start");
            let also = format!("As [`{name}`](Self::{name}), without waiting.");
            return quote! {
                #(#documents)*
                pub fn #name(&self, #(#inputs),*) -> Result<#result, ::vmmc_rpc::RpcError> {
                    let arguments = ::vmmc_rpc::encode(&(#(#names,)*));
                    let answer = self.client.request(#number).arguments(&arguments)#(#with_bulk)*.call()?;
                    self.client.decode(#number, &answer.result)
                }

                #[doc = #also]
                pub fn #start(&self, #(#again),*) -> Result<::vmmc_rpc::Typed<#result>, ::vmmc_rpc::RpcError> {
                    let arguments = ::vmmc_rpc::encode(&(#(#names,)*));
                    let pending = self.client.request(#number).arguments(&arguments)#(#with_bulk)*.start()?;
                    Ok(::vmmc_rpc::Typed::new(pending, self.client.clone(), #number))
                }
            };
        };
        let without: Vec<_> = inputs.clone().filter(|input| !is_named(input, Some(into))).collect();
        let inputs: Vec<_> = inputs.collect();
        let bulk_name = format_ident!("{name}_bulk");
        let also = format!("As [`{name}`](Self::{name}), and leaves the bytes where they have landed.");
        let into_region = format_ident!("{name}_into");
        let there = format!("As [`{name}`](Self::{name}), with the bytes in a region of the client, where they stay.");
        quote! {
            #(#documents)*
            pub fn #name(&self, #(#inputs),*) -> Result<#result, ::vmmc_rpc::RpcError> {
                let arguments = ::vmmc_rpc::encode(&(#(#names,)* #into.len() as u64,));
                let request = self.client.request(#number).arguments(&arguments)#(#with_bulk)*;
                let answer = request.wants_bulk().call()?;
                self.client.fill(#number, &answer, #into)
            }

            #[doc = #also]
            pub fn #bulk_name(
                &self,
                #(#without,)*
                bytes: u64,
            ) -> Result<(#result, ::vmmc_rpc::Bulk), ::vmmc_rpc::RpcError> {
                let arguments = ::vmmc_rpc::encode(&(#(#names,)* bytes,));
                let request = self.client.request(#number).arguments(&arguments)#(#with_bulk)*;
                self.client.decode_bulk(#number, request.wants_bulk().call()?)
            }

            #[doc = #there]
            pub fn #into_region(
                &self,
                #(#without,)*
                region: &::vmmc_rpc::TokenRegion,
                bytes: ::core::ops::Range<u64>,
            ) -> Result<(#result, ::vmmc_rpc::Bulk), ::vmmc_rpc::RpcError> {
                let wanted = bytes.end.saturating_sub(bytes.start);
                let arguments = ::vmmc_rpc::encode(&(#(#names,)* wanted,));
                let request = self.client.request(#number).arguments(&arguments)#(#with_bulk)*;
                self.client.decode_bulk(#number, request.into_region(region, bytes).call()?)
            }
        }
    }
}

/// Whether it is `&[u8]` or `&mut [u8]`: then, whether it is the latter.
fn slice_of_bytes(of: &Type) -> Option<bool> {
    let Type::Reference(reference) = of else { return None };
    let Type::Slice(slice) = &*reference.elem else { return None };
    let Type::Path(element) = &*slice.elem else { return None };
    element.path.is_ident("u8").then_some(reference.mutability.is_some())
}

fn is_named(input: &FnArg, name: Option<&Ident>) -> bool {
    let FnArg::Typed(input) = input else { return false };
    matches!((&*input.pat, name), (Pat::Ident(pattern), Some(name)) if pattern.ident == *name)
}

/// FNV-1a of what was written, but for white space, folded to 16 bits. Never 0, which no service
/// has.
fn number_of(signature: &str) -> u16 {
    let bytes = signature.bytes().filter(|byte| !byte.is_ascii_whitespace());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    ((hash >> 16) as u16 ^ hash as u16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let item = syn::parse_str(text).expect("a trait");
        expand(item).expect_err("it is refused").to_string()
    }

    #[test]
    fn what_cannot_be_a_service_is_refused_with_the_reason() {
        let cases = [
            ("trait S<T> { fn f(&self); }", "no generic parameters"),
            ("trait S { type T; }", "methods and nothing else"),
            ("trait S { fn f(&self) {} }", "no body"),
            ("trait S { async fn f(&self); }", "not async"),
            ("trait S { fn f<T>(&self, t: T); }", "not async"),
            ("trait S { fn f(&mut self); }", "takes `&self`"),
            ("trait S { fn f(); }", "takes `&self`"),
            ("trait S { fn f(&self, a: &[u8], b: &[u8]); }", "and no more"),
            ("trait S { fn f(&self, a: &mut [u8], b: &mut [u8]); }", "and no more"),
            ("trait S { fn f(&self, a: &mut u64); }", "nothing comes back through it"),
            ("trait S { fn f(&self, (a, b): (u8, u8)); }", "a name is needed"),
        ];
        for (text, why) in cases {
            let said = refused(text);
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn numbers_do_not_depend_on_white_space_and_do_on_everything_else() {
        let number = number_of("fn f (& self , a : u8) -> u8");
        assert_eq!(number, number_of("fn f(&self,a:u8)->u8"));
        // The same stands in bindings/python/tests/test_rpc.py.
        assert_eq!(number, 4034);
        for other in ["fn g(&self,a:u8)->u8", "fn f(&self,a:u16)->u8", "fn f(&self,a:u8)->u16", "fn f(&self,b:u8)->u8"]
        {
            assert_ne!(number, number_of(other), "{other}");
        }
    }
}
