// mdbook's index knows English words only, and finds no Chinese one. Where a word of the search is Chinese, this looks for all of them in the text.
'use strict';
(() => {
    const search = elasticlunr.Index.prototype.search;
    const around = 40; // characters that a result shows on each side of the word

    // How well a section fits, 0 if a word is missing: a heading that has the words comes before a text that has them often.
    function score(section, words) {
        const body = section.body.toLowerCase();
        const title = section.title.toLowerCase();
        const counts = words.map(word => body.split(word).length - 1 + (title.includes(word) ? 1000 : 0));
        return counts.includes(0) ? 0 : counts.reduce((sum, count) => sum + count);
    }

    function excerpt(body, word) {
        const at = Math.max(body.toLowerCase().indexOf(word), 0);
        return body.slice(Math.max(at - around, 0), at + word.length + around);
    }

    elasticlunr.Index.prototype.search = function (term, options) {
        if (!/\p{Script=Han}/u.test(term)) {
            return search.call(this, term, options);
        }
        const words = term.toLowerCase().split(/\s+/).filter(Boolean);
        const found = Object.entries(this.documentStore.docs).map(([ref, doc]) =>
            ({ ref, score: score(doc, words), doc: { ...doc, body: excerpt(doc.body, words[0]) } }));
        return found.filter(one => one.score > 0).sort((a, b) => b.score - a.score);
    };
})();
