"""The commonest words that tell German, Spanish, French, Italian and English from each other.

One STRONG word tells: it is no English word, and hardly ever part of a name in an English text. WEAK ones are (Los
Angeles, Die Hard, Le Mans, et al., par 5), so several are needed. A word that is common in English too (in, an, so, on,
me, also, will) is in no list.
"""

from __future__ import annotations

from cosyvoice_app.text.chars import words

LATIN_LANGUAGES = ("de", "es", "fr", "it")

ENGLISH = frozenset(
    words(
        "the and of to is are were been being be has have had does did do don't doesn't didn't isn't it it's its this "
        "that that's these those there there's they them their you your you're he he's she she's his we we're our my "
        "i'm i've i'll for from with without about into over under after before between because but not if then than "
        "which who what when where why how at by as can can't could would should may might must please yes every each "
        "other some any more most only just very too now get got go said says one two three costs takes weighs starts"
    )
)

STRONG = {
    "de": frozenset(
        words(
            "ich sie wir ihr mich mir dich ihm ihn uns euch sich ist sind seid bist waren wird werden wurde wurden "
            "habe haben hast hatte hatten kann können muss müssen soll sollen möchte nicht kein keine keinen und "
            "oder aber weil dass wenn denn doch noch schon nur auch sehr mehr hier dort heute gestern morgen jetzt "
            "immer nach mit bei aus auf über unter für gegen ohne durch zwischen seit zum zur vom beim einen einem "
            "einer eines mein meine dein deine ihre unser unsere dieser diese dieses wie wo wer warum wann welche "
            "kostet kosten gibt geht kommt kommen fährt uhr jahre jahren stück prozent bitte danke guten etwa rund "
            "januar februar märz juni juli oktober dezember montag dienstag mittwoch donnerstag freitag samstag "
            "sonntag"
        )
    ),
    "es": frozenset(
        words(
            "yo él ella nosotros ellos ellas usted ustedes sus qué quién cómo cuándo dónde cuánto cuánta cuántos "
            "cuesta cuestan es está están estoy estamos eran fue fueron tengo tiene tienen hay había han hemos voy "
            "vamos puede quiero pero porque cuando donde muy más menos también aquí allí hoy ayer mañana ahora "
            "siempre nunca sobre entre hasta desde por nos unos unas este esta estos estas ese esa mucho muchos "
            "todos años año día días hora horas gracias señor señora enero febrero abril junio julio agosto "
            "septiembre octubre noviembre diciembre lunes martes miércoles jueves viernes sábado"
        )
    ),
    "fr": frozenset(
        words(
            "je elle nous vous ils elles notre nos votre vos leur leurs ce cet cette ces qui que quoi quand où "
            "comment pourquoi combien sont suis sommes êtes était étaient sera être avons avez ont avait avoir "
            "faire peut veux vont mais donc parce très moins aussi ici hier aujourd' demain maintenant toujours "
            "jamais ne sous avec dans depuis jusqu' aux ans heure heures coûte coûtent merci bonjour j' qu' n' c' "
            "s' janvier février avril juin juillet août septembre octobre novembre décembre lundi mardi mercredi "
            "jeudi vendredi samedi dimanche"
        )
    ),
    "it": frozenset(
        words(
            "io lui lei noi voi loro mio miei tuo sua suo nostro nostra questo questa questi queste quello quella "
            "cosa quando perché quanto quanta quanti è sono siamo siete erano stato essere abbiamo avete hanno "
            "aveva avere può voglio vanno però anche più meno molto molti già oggi ieri domani adesso sempre senza "
            "sotto tra fra della delle dello degli dell' alle agli dalla dalle nella nei nelle nell' sulla sulle "
            "un' anni anno costano grazie buongiorno gennaio febbraio marzo aprile maggio giugno luglio settembre "
            "ottobre dicembre lunedì martedì mercoledì giovedì venerdì sabato domenica c'"
        )
    ),
}

WEAK = {
    "de": frozenset(
        words(
            "der die das den dem des ein eine du er es von vor am im um zu als bis ins mai euro circa dir"
        )
    ),
    "es": frozenset(
        words(
            "el la los las un una de en del mi tu su se lo le les al y ha he va son con para sin como ya más todo "
            "mayo euros era está"
        )
    ),
    "fr": frozenset(
        words(
            "il le la les un une de du des en à au l' d' tu mon ma ta ton se est et ou y ai va pas sur sans par "
            "pour plus chez son mai mars euros environ"
        )
    ),
    "it": frozenset(
        words(
            "il la lo gli le i un una uno di da in del dei al alla ai a l' e ma ho ha hai mia tua va per con non "
            "che chi dove era ora ore nel sul dal mai qui sei euro circa costa ciao"
        )
    ),
}

LETTERS = {
    "de": frozenset("äöüß"),
    "es": frozenset("ñáéíóú"),
    "fr": frozenset("éèêëàâçîïôûùœ"),
    "it": frozenset("àèéìòù"),
}
"""Letters beyond ASCII. In a word without capitals they are a hint; Niño and Müller are names everywhere."""
