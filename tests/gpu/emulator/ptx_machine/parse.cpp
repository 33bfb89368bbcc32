/* tests/gpu/emulator/ptx_machine/parse.cpp: a kernel of PTX text as
 * instructions. Calls of functions are expanded in place.
 * SPDX-License-Identifier: MIT */
#include "parse.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

namespace ptx
{

namespace
{

struct Line {
    std::string text;
    int number;
};
typedef std::vector<Line> Lines;

bool begins(const std::string &s, const char *with) { return !s.compare(0, strlen(with), with); }

/* Past spaces and comments. */
const char *skip(const char *p, int *line)
{
    for (;; p++) {
        if (p[0] == '/' && p[1] == '/') p += strcspn(p, "\n");
        if (!*p || !isspace((unsigned char)*p)) return p;
        *line += *p == '\n';
    }
}

/* Statements without their semicolons; braces of blocks are lines of their own. */
Lines split(const char *p)
{
    Lines lines;
    int line = 1;
    while (*(p = skip(p, &line))) {
        int first = line;
        std::string text;
        const char *until = !strncmp(p, ".version", 8) || !strncmp(p, ".target", 7) ||
                                    !strncmp(p, ".address", 8)
                                ? "\n"
                            : *p == '$'                                             ? ":"
                            : !strncmp(p, ".visible", 8) || !strncmp(p, ".func", 5) ? "{;"
                                                                                    : ";";
        if (*p == '{' || *p == '}') {
            lines.push_back({std::string(p++, 1), line});
            continue;
        }
        for (; *p && !strchr(until, *p); p++) {
            line += *p == '\n';
            bool space = isspace((unsigned char)*p);
            if (!space || (!text.empty() && text.back() != ' ')) text += space ? ' ' : *p;
        }
        while (!text.empty() && text.back() == ' ') text.pop_back();
        if (*p && *p != '{' && *p != '\n') p++;
        lines.push_back({text, first});
    }
    return lines;
}

/* Parts between commas, and bars, that are not within brackets. */
std::vector<std::string> parts_of(const std::string &text)
{
    std::vector<std::string> parts(1);
    int depth = 0;
    for (char c : text) {
        depth += (c == '[' || c == '{' || c == '(') - (c == ']' || c == '}' || c == ')');
        if (!depth && (c == ',' || c == '|'))
            parts.push_back("");
        else if (c != ' ')
            parts.back() += c;
    }
    if (parts.back().empty()) parts.pop_back();
    return parts;
}

/* .SPACE .align N .TYPE NAME[COUNT] = {...} */
struct Declaration {
    std::string type, name, value;
    unsigned aligned = 0;
    long long count = -1; /* -1: no brackets; 0: empty ones */

    explicit Declaration(const std::string &text)
    {
        size_t equals = text.find('='), at = 0;
        std::string left = text.substr(0, equals);
        if (equals != std::string::npos) value = text.substr(equals + 1);
        while (at < left.size()) {
            size_t end = left.find(' ', at);
            std::string word = left.substr(at, end - at);
            if (word == ".align")
                aligned = (unsigned)atoi(left.c_str() + end + 1);
            else if (word[0] == '.')
                type = word.substr(1);
            else if (!isdigit((unsigned char)word[0]))
                name = word;
            at = end == std::string::npos ? left.size() : end + 1;
        }
        size_t bracket = name.find('[');
        if (bracket != std::string::npos) {
            count = atoll(name.c_str() + bracket + 1);
            name.resize(bracket);
        }
        if (!aligned) aligned = element();
    }
    unsigned element() const { return bytes_of(type_of(type)); }
    unsigned bytes() const { return element() * (unsigned)(count < 0 ? 1 : count); }
};

struct Symbol {
    enum { REGISTER, RANGE, ADDRESS, LOCAL } kind;
    int row; /* REGISTER; RANGE: of number 0 */
    long long count;
    uint64_t address;
};
typedef std::map<std::string, Symbol> Names;

struct Body {
    std::vector<std::string> params;
    Lines lines;
};

class Parser
{
  public:
    Parser(Kernel *kernel) : k(*kernel), scopes(1) {}
    bool run(const char *text, const char *entry);

  private:
    Kernel &k;
    std::vector<Names> scopes; /* 0: of the module */
    size_t oldest = 1;         /* scope of the function that is expanded */
    std::map<std::string, Body> functions;
    std::map<std::string, int> labels;
    std::vector<std::pair<size_t, std::string>> jumps;
    std::map<uint64_t, int> constants;
    int instances = 0, instance = 0;
    const Line *line = nullptr;
    std::string bad;

    bool wrong(const std::string &what)
    {
        if (bad.empty()) bad = what;
        return false;
    }
    bool collect(const Lines &lines, const std::string &entry, Body *body);
    bool expand(const Body &body, const std::vector<uint64_t> &places);
    bool one(const std::string &text);
    bool declare(const std::string &text);
    void place_shared(const Declaration &d, bool dynamic);
    bool place_global(const Declaration &d);
    uint64_t place_local(const Declaration &d);
    bool instruction(std::string text);
    bool call(const std::string &operands);
    bool finish(const Statement &s, Instruction *i);
    bool operands(const std::string &text, Statement *s);
    bool operand(const std::string &text, Statement *s);
    bool address(const std::string &text, Statement *s);
    const Symbol *find(const std::string &name, int *row);
    int constant(uint64_t value);
    std::string label(const std::string &name) { return std::to_string(instance) + name; }
};

const Symbol *Parser::find(const std::string &name, int *row)
{
    for (size_t i = scopes.size(); i--;) {
        if (i && i < oldest) continue;
        auto at = scopes[i].find(name);
        if (at != scopes[i].end()) {
            *row = at->second.row;
            return &at->second;
        }
        size_t letters = name.find_last_not_of("0123456789") + 1;
        at = scopes[i].find(name.substr(0, letters) + "<");
        if (letters == name.size() || at == scopes[i].end()) continue;
        long long number = atoll(name.c_str() + letters);
        if (number >= at->second.count) continue;
        *row = at->second.row + (int)number;
        return &at->second;
    }
    return nullptr;
}

int Parser::constant(uint64_t value)
{
    auto at = constants.find(value);
    if (at != constants.end()) return at->second;
    Row row;
    for (auto &lane : row.lane) lane = value;
    k.constants.push_back(row);
    return constants[value] = ~(int)(k.constants.size() - 1);
}

/* ---- declarations ---- */

/* At a multiple of its alignment that is none of its double: the assembler
 * promises no more. */
void Parser::place_shared(const Declaration &d, bool dynamic)
{
    unsigned at = (k.shared_end + d.aligned - 1) / d.aligned * d.aligned;
    if (at / d.aligned % 2 == 0) at += d.aligned;
    if (dynamic)
        k.dynamic_at = at;
    else
        k.shared.push_back({at, d.bytes()}), k.shared_end = at + d.bytes();
    scopes[0][d.name] = {Symbol::ADDRESS, 0, 0, at};
}

bool Parser::place_global(const Declaration &d)
{
    if (d.element() != 1) return wrong("a variable that is not of bytes");
    k.globals.emplace_back(d.bytes());
    const char *p = d.value.c_str();
    for (char &byte : k.globals.back()) {
        p += strcspn(p, "0123456789");
        byte = (char)strtol(p, (char **)&p, 10);
    }
    scopes[0][d.name] = {Symbol::ADDRESS, 0, 0, (uint64_t)(uintptr_t)k.globals.back().data()};
    return true;
}

uint64_t Parser::place_local(const Declaration &d)
{
    unsigned at = (k.local_bytes + d.aligned - 1) / d.aligned * d.aligned;
    k.local_bytes = at + d.bytes();
    return LOCAL_AT + at;
}

bool Parser::declare(const std::string &text)
{
    if (begins(text, ".reg ")) {
        size_t at = text.find(' ', 5);
        for (const auto &name : parts_of(text.substr(at))) {
            size_t angle = name.find('<');
            bool range = angle != std::string::npos;
            int n = range ? atoi(name.c_str() + angle + 1) : 1;
            scopes.back()[range ? name.substr(0, angle + 1) : name] = {
                range ? Symbol::RANGE : Symbol::REGISTER, k.rows, n, 0};
            k.rows += n;
        }
        return true;
    }
    if (begins(text, ".pragma")) return true;
    Declaration d(text);
    if (!d.element()) return wrong("not understood");
    if (begins(text, ".shared"))
        place_shared(d, false);
    else if (begins(text, ".extern .shared"))
        scopes[0][d.name] = {Symbol::ADDRESS, 0, d.aligned, 0}; /* placed after the others */
    else if (begins(text, ".local") || begins(text, ".param"))
        scopes.back()[d.name] = {text[1] == 'l' ? Symbol::ADDRESS : Symbol::LOCAL, 0, 0,
                                 place_local(d)};
    else if (begins(text, ".global") || begins(text, ".const"))
        return place_global(d);
    else
        return wrong("not understood");
    return true;
}

/* ---- operands ---- */

bool Parser::address(const std::string &text, Statement *s)
{
    size_t plus = text.find('+');
    std::string base = text.substr(0, plus);
    Address a;
    if (plus != std::string::npos) a.offset = atoll(text.c_str() + plus + 1);
    const Symbol *symbol = find(base, &a.row);
    if (!symbol) return wrong("unknown: " + base);
    a.is_local = symbol->kind == Symbol::LOCAL;
    if (symbol->kind == Symbol::ADDRESS || a.is_local) a.row = constant(symbol->address);
    s->addresses.push_back(a);
    s->rows.push_back(a.row);
    s->sizes.push_back(0);
    return true;
}

bool Parser::operand(const std::string &text, Statement *s)
{
    static const char *const specials[] = {
        "%tid.x",   "%tid.y",   "%tid.z",    "%ntid.x",   "%ntid.y",   "%ntid.z", "%ctaid.x",
        "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid"};
    int row = 0;
    const Symbol *symbol;
    size_t digit = text[0] == '-';
    if (text == "_") {
        row = NOWHERE;
    } else if (text[0] == '!') {
        s->negated = true;
        return operand(text.substr(1), s);
    } else if (!text.compare(0, 2, "0f") || !text.compare(0, 2, "0F") ||
               !text.compare(0, 2, "0d") || !text.compare(0, 2, "0D")) {
        row = constant(strtoull(text.c_str() + 2, nullptr, 16));
    } else if (isdigit((unsigned char)text[digit])) {
        long long v = digit ? atoll(text.c_str()) : (long long)strtoull(text.c_str(), nullptr, 0);
        s->numbers.push_back(v);
        row = constant((uint64_t)v);
    } else if ((symbol = find(text, &row))) {
        if (symbol->kind == Symbol::ADDRESS || symbol->kind == Symbol::LOCAL)
            row = constant(symbol->address);
    } else {
        for (row = 0; row <= LANEID && text != specials[row];) row++;
        if (row > LANEID) return wrong("unknown: " + text);
    }
    s->rows.push_back(row);
    return true;
}

bool Parser::operands(const std::string &text, Statement *s)
{
    for (const auto &part : parts_of(text)) {
        if (part[0] == '[') {
            if (!address(part.substr(1, part.size() - 2), s)) return false;
            continue;
        }
        size_t before = s->rows.size();
        bool vector = part[0] == '{';
        for (const auto &p : parts_of(vector ? part.substr(1, part.size() - 2) : part))
            if (!operand(p, s)) return false;
        s->sizes.push_back((unsigned)(s->rows.size() - before));
    }
    return true;
}

/* ---- instructions ---- */

bool Parser::call(const std::string &text)
{
    std::vector<std::string> names;
    std::vector<uint64_t> places;
    for (const auto &part : parts_of(text)) {
        if (part[0] != '(') {
            names.push_back(part);
            continue;
        }
        for (const auto &p : parts_of(part.substr(1, part.size() - 2))) {
            int row;
            const Symbol *symbol = find(p, &row);
            if (!symbol || symbol->kind != Symbol::LOCAL) return wrong("unknown: " + p);
            places.push_back(symbol->address);
        }
    }
    auto f = names.size() == 1 ? functions.find(names[0]) : functions.end();
    if (f == functions.end() || f->second.params.size() != places.size())
        return wrong("a call that is not understood");
    return expand(f->second, places);
}

bool Parser::finish(const Statement &s, Instruction *i)
{
    i->first = (unsigned)k.pool.size();
    i->n = (unsigned)s.rows.size();
    k.pool.insert(k.pool.end(), s.rows.begin(), s.rows.end());
    if (!s.addresses.empty() && s.op[0] != "cp") i->number = s.addresses[0].offset;
    if (!decode_numbers(s, i) && !decode_memory(s, i) && !decode_lanes(s, i))
        return wrong("this instruction is not known to the machine");
    for (const auto &a : s.addresses)
        if (a.is_local) i->space = LOCAL;
    if (s.op[0] == "wgmma" && s.op[1] == "mma_async") {
        k.has_products = true;
        k.is_sum.resize((size_t)k.rows);
        for (unsigned j = 0; j < s.sizes[0]; j++) k.is_sum[(size_t)s.rows[j]] = true;
    }
    k.code.push_back(*i);
    return true;
}

bool Parser::instruction(std::string text)
{
    Instruction i;
    i.line = line->number;
    i.text = text.substr(0, 160);
    if (text[0] == '@') {
        i.guard_not = text[1] == '!';
        size_t end = text.find(' '), begin = i.guard_not ? 2 : 1;
        if (!find(text.substr(begin, end - begin), &i.guard)) return wrong("unknown predicate");
        text.erase(0, end + 1);
    }
    size_t end = text.find(' ');
    std::string opcode = text.substr(0, end), rest = end < text.size() ? text.substr(end + 1) : "";
    if (opcode == "call.uni" || opcode == "call")
        return i.guard < 0 ? call(rest) : wrong("a call with a predicate");
    if (opcode == "bra" || opcode == "bra.uni" || (opcode == "ret" && instance)) {
        i.control = BRANCH;
        jumps.emplace_back(k.code.size(), label(opcode == "ret" ? "end" : rest));
        k.code.push_back(i);
        return true;
    }
    if (opcode == "ret" || opcode == "exit") {
        i.control = EXIT;
        k.code.push_back(i);
        return true;
    }
    Statement s;
    for (size_t at = 0, dot; at <= opcode.size(); at = dot + 1) {
        dot = opcode.find('.', at);
        if (dot == std::string::npos) dot = opcode.size();
        s.op.push_back(opcode.substr(at, dot - at));
    }
    return operands(rest, &s) && finish(s, &i);
}

bool Parser::one(const std::string &text)
{
    if (text == "{") return scopes.emplace_back(), true;
    if (text == "}") return scopes.pop_back(), true;
    if (text[0] == '$') return labels[label(text)] = (int)k.code.size(), true;
    return text[0] == '.' ? declare(text) : text.empty() || instruction(text);
}

/* The function's instructions; its parameters are the caller's variables. */
bool Parser::expand(const Body &body, const std::vector<uint64_t> &places)
{
    size_t before = oldest;
    int outer = instance;
    const Line *called = line;
    instance = instances++;
    oldest = scopes.size();
    scopes.emplace_back();
    for (size_t i = 0; i < places.size(); i++)
        scopes.back()[body.params[i]] = {Symbol::LOCAL, 0, 0, places[i]};
    for (const Line &l : body.lines) {
        line = &l;
        if (!one(l.text)) return false;
    }
    labels[label("end")] = (int)k.code.size();
    scopes.resize(oldest);
    oldest = before, instance = outer, line = called;
    return true;
}

/* Names of the parameters in a header: (.param .b64 NAME, ...), results first. */
std::vector<std::string> params_of(const std::string &header)
{
    std::vector<std::string> names;
    for (size_t at = header.find(".param"); at != std::string::npos;
         at = header.find(".param", at + 1))
        names.push_back(Declaration(header.substr(at, header.find_first_of(",)", at) - at)).name);
    for (auto &name : names)
        while (name.back() == ' ') name.pop_back();
    return names;
}

/* Variables of the module, its functions, and the entry. */
bool Parser::collect(const Lines &lines, const std::string &entry, Body *body)
{
    bool found = false;
    for (size_t i = 0; i < lines.size(); i++) {
        const std::string &text = lines[i].text;
        line = &lines[i];
        if (begins(text, ".version") || begins(text, ".target") || begins(text, ".address"))
            continue;
        if (text.find(".func ") == std::string::npos && text.find(".entry ") == std::string::npos) {
            if (!declare(text)) return false;
            continue;
        }
        if (i + 1 == lines.size() || lines[i + 1].text != "{")
            continue; /* declared, defined later */
        size_t at = text.find(".entry ");
        bool is_entry = at != std::string::npos;
        std::string from = is_entry ? text.substr(at + 7) : text.substr(text.find(") ") + 2);
        std::string name = from.substr(0, from.find_first_of("( "));
        Body b{params_of(text), {}};
        int depth = 0;
        do {
            const Line &l = lines[++i];
            depth += (l.text == "{") - (l.text == "}");
            b.lines.push_back(l);
        } while (depth && i + 1 < lines.size());
        if (is_entry && name == entry) *body = b, found = true;
        if (is_entry && name == entry)
            k.param_bytes = (unsigned)atoi(text.c_str() + text.find('[') + 1);
        if (!is_entry) functions[name] = b;
    }
    return found || wrong("no such kernel");
}

bool Parser::run(const char *text, const char *entry)
{
    Body body;
    Lines lines = split(text);
    k.name = entry;
    k.shared_end = 1024;
    Names dynamic;
    bool good = collect(lines, entry, &body);
    for (auto &name : scopes[0])
        if (name.second.kind == Symbol::ADDRESS && name.second.count) dynamic.insert(name);
    /* variables before code, so that dynamic shared memory is after them */
    for (const Line &l : body.lines)
        if (begins(l.text, ".shared")) declare(l.text);
    for (auto &l : body.lines)
        if (begins(l.text, ".shared")) l.text.clear();
    for (auto &name : dynamic) {
        Declaration d(".shared .align " + std::to_string(name.second.count) + " .b8 " + name.first +
                      "[]");
        place_shared(d, true);
    }
    if (good && body.params.size() == 1)
        scopes[0][body.params[0]] = {Symbol::ADDRESS, 0, 0, PARAM_AT};
    good = good && expand(body, {});
    for (auto &jump : jumps) {
        auto at = labels.find(jump.second);
        if (at == labels.end())
            good = wrong("no label " + jump.second);
        else
            k.code[jump.first].target = at->second;
    }
    k.is_sum.resize((size_t)k.rows);
    for (auto &i : k.code)
        for (unsigned j = 0; j < i.n; j++) {
            int row = k.pool[i.first + j];
            if (row >= 0 && k.is_sum[(size_t)row]) i.sums = true;
        }
    Instruction end;
    end.control = EXIT;
    k.code.push_back(end);
    if (!good)
        fprintf(stderr, "ptx machine: %s: line %d: %s: %s\n", entry, line ? line->number : 0,
                line ? line->text.substr(0, 160).c_str() : "", bad.c_str());
    return good;
}

} // namespace

Type type_of(const std::string &name)
{
    static const std::map<std::string, Type> types = {
        {"pred", PRED}, {"u8", U8},   {"s8", S8},     {"b8", U8},   {"u16", U16}, {"s16", S16},
        {"b16", U16},   {"u32", U32}, {"s32", S32},   {"b32", U32}, {"u64", U64}, {"s64", S64},
        {"b64", U64},   {"f16", F16}, {"bf16", BF16}, {"f32", F32}, {"f64", F64}};
    auto at = types.find(name);
    return at == types.end() ? NONE : at->second;
}

unsigned bytes_of(Type t)
{
    static const unsigned bytes[] = {0, 0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    return bytes[t];
}

std::unique_ptr<Kernel> parse(const char *text, const char *entry)
{
    std::unique_ptr<Kernel> k(new Kernel);
    Parser parser(k.get());
    return parser.run(text, entry) ? std::move(k) : nullptr;
}

} // namespace ptx
