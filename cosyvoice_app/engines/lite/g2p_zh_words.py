"""Words that pypinyin's phrase data lacks or reads otherwise than they are said: neutral tones and common polyphones.
"""

from __future__ import annotations

_NEUTRAL = """
头发 tou2 fa5|朋友 peng2 you5|喜欢 xi3 huan5|知道 zhi1 dao5|先生 xian1 sheng5|学生 xue2 sheng5
休息 xiu1 xi5|漂亮 piao4 liang5|明白 ming2 bai5|时候 shi2 hou5|告诉 gao4 su5|事情 shi4 qing5|认识 ren4 shi5
关系 guan1 xi5|名字 ming2 zi5|意思 yi4 si5|地方 di4 fang5|衣服 yi1 fu5|晚上 wan3 shang5|早上 zao3 shang5
眼睛 yan3 jing5|耳朵 er3 duo5|葡萄 pu2 tao5|太阳 tai4 yang5|月亮 yue4 liang5|故事 gu4 shi5|客气 ke4 qi5|麻烦 ma2 fan5
清楚 qing1 chu5|舒服 shu1 fu5|聪明 cong1 ming5|豆腐 dou4 fu5|消息 xiao1 xi5|父亲 fu4 qin5|母亲 mu3 qin5
姑娘 gu1 niang5|丈夫 zhang4 fu5|妻子 qi1 zi5|窗户 chuang1 hu5|师傅 shi1 fu5|护士 hu4 shi5|钥匙 yao4 shi5
生意 sheng1 yi5|便宜 pian2 yi5|多少 duo1 shao5|力气 li4 qi5|脾气 pi2 qi5|客人 ke4 ren5|商量 shang1 liang5
打听 da3 ting5|打扮 da3 ban5|打算 da3 suan5|收拾 shou1 shi5|照顾 zhao4 gu5|咳嗽 ke2 sou5|暖和 nuan3 huo5|热闹 re4 nao5
凉快 liang2 kuai5|结实 jie1 shi5|老实 lao3 shi5|厉害 li4 hai5|奇怪 qi2 guai4|新鲜 xin1 xian5|困难 kun4 nan5
我们 wo3 men5|你们 ni3 men5|他们 ta1 men5|她们 ta1 men5|它们 ta1 men5|咱们 zan2 men5|人们 ren2 men5|妈妈 ma1 ma5
爸爸 ba4 ba5|爷爷 ye2 ye5|奶奶 nai3 nai5|哥哥 ge1 ge5|姐姐 jie3 jie5|弟弟 di4 di5|妹妹 mei4 mei5|叔叔 shu1 shu5
谢谢 xie4 xie5|星星 xing1 xing5|上边 shang4 bian5|下边 xia4 bian5|里边 li3 bian5|外边 wai4 bian5|前面 qian2 mian5
后面 hou4 mian5|里面 li3 mian5|外面 wai4 mian5|上面 shang4 mian5
下面 xia4 mian5|这个 zhe4 ge5|那个 na4 ge5|哪个 na3 ge5|一个 yi2 ge5|两个 liang3 ge5|几个 ji3 ge5|三个 san1 ge5
四个 si4 ge5|五个 wu3 ge5|六个 liu4 ge5|七个 qi1 ge5|八个 ba1 ge5|九个 jiu3 ge5|十个 shi2 ge5|来过 lai2 guo5
去过 qu4 guo5|看过 kan4 guo5|听过 ting1 guo5|吃过 chi1 guo5|起来 qi3 lai5|出来 chu1 lai5|进来 jin4 lai5|回来 hui2 lai5
过来 guo4 lai5|下来 xia4 lai5|上来 shang4 lai5|出去 chu1 qu5|进去 jin4 qu5|回去 hui2 qu5|过去 guo4 qu5|上去 shang4 qu5
下去 xia4 qu5
"""
_POLYPHONES = """
大夫 dai4 fu5|士大夫 shi4 da4 fu1|薄荷 bo4 he5
银行 yin2 hang2|行长 hang2 zhang3|换行 huan4 hang2|行业 hang2 ye4|行不行 xing2 bu5 xing2|还书 huan2 shu1
还钱 huan2 qian2|还给 huan2 gei3|还债 huan2 zhai4|还款 huan2 kuan3|归还 gui1 huan2|很长 hen3 chang2|太长 tai4 chang2
更长 geng4 chang2|最长 zui4 chang2|多长 duo1 chang2|真长 zhen1 chang2|好长 hao3 chang2|米长 mi3 chang2
长长的 chang2 chang2 de5|不长 bu4 chang2|长着 zhang3 zhe5|长得 zhang3 de5|数了数 shu3 le5 shu3|数一数 shu3 yi1 shu3
数数 shu3 shu4|数不清 shu3 bu5 qing1|数到 shu3 dao4|睡着了 shui4 zhao2 le5|睡不着 shui4 bu5 zhao2|差点 cha4 dian3
差不多 cha4 bu5 duo1|出差 chu1 chai1|弹琴 tan2 qin2|子弹 zi3 dan4|弹钢琴 tan2 gang1 qin2|弹吉他 tan2 ji2 ta1
音乐 yin1 yue4|快乐 kuai4 le4|重新 chong2 xin1|重来 chong2 lai2|重复 chong2 fu4|好处 hao3 chu5
到处 dao4 chu4|处长 chu4 zhang3|会计 kuai4 ji4
觉得 jue2 de5|睡觉 shui4 jiao4|得到 de2 dao4|得去 dei3 qu4|都是 dou1 shi4|都市 du1 shi4|地面 di4 mian4
慢慢地 man4 man4 de5|好好地 hao3 hao1 de5|轻轻地 qing1 qing1 de5|种地 zhong4 di4|种树 zhong4 shu4|教书 jiao1 shu1
教我 jiao1 wo3|背包 bei1 bao1|倒水 dao4 shui3|假期 jia4 qi1|放假 fang4 jia4|空儿 kong4 er5
有空 you3 kong4|几乎 ji1 hu1|应该 ying1 gai1|答应 da1 ying5|切菜 qie1 cai4|扫地 sao3 di4|转身 zhuan3 shen1
转圈 zhuan4 quan1|只有 zhi3 you3|一只 yi1 zhi1
"""


def _parse(lines: str) -> dict[str, tuple[str, ...]]:
    table = {}
    for entry in lines.replace("\n", "|").split("|"):
        if entry:
            word, *readings = entry.split()
            if len(readings) != len(word):
                raise ValueError(f"{word}: {len(word)} characters, {len(readings)} readings")
            table[word] = tuple(readings)
    return table


READINGS = {**_parse(_NEUTRAL), **_parse(_POLYPHONES)}
"""Word -> a reading a character (TONE3 pinyin, 5 = neutral). Citation tones: 不 and 一 get their sandhi later."""
